// cub::BlockDiscontinuity: flags items that differ, by an operator, from the previous or the next item.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/hearth_neighbours.cuh>

namespace cub {

template <class T, int BLOCK_DIM_X, int BLOCK_DIM_Y = 1, int BLOCK_DIM_Z = 1>
class BlockDiscontinuity {
    static constexpr int Threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z;
    using Neighbours = hearth_details::Neighbours<T, Threads>;

    // Without a neighbour beyond the tile (null) the item there is flagged.
    template <int ITEMS, class Flag, class Op>
    static void flag(Flag *heads, Flag *tails, T (&input)[ITEMS], T *preds, Op &op, const T *beyond_first,
                     const T *beyond_last) {
        T before = beyond_first != nullptr ? *beyond_first : input[0];
        T behind = beyond_last != nullptr ? *beyond_last : input[ITEMS - 1];
        Neighbours::fetch(input, before, behind);
        const int base = static_cast<int>(hearth::thread_rank()) * ITEMS;
        for (int i = 0; i < ITEMS; ++i) {
            if (heads != nullptr) {
                const bool alone = i == 0 && Neighbours::is_first() && beyond_first == nullptr;
                const T &pred = i == 0 ? before : input[i - 1];
                if (preds != nullptr && !alone) preds[i] = pred;
                heads[i] = alone ? Flag(1) : Flag(hearth_details::apply_with_index(op, pred, input[i], base + i));
            }
            if (tails != nullptr) {
                const bool alone = i == ITEMS - 1 && Neighbours::is_last() && beyond_last == nullptr;
                const T &next = i == ITEMS - 1 ? behind : input[i + 1];
                tails[i] = alone ? Flag(1) : Flag(hearth_details::apply_with_index(op, input[i], next, base + i + 1));
            }
        }
    }

public:
    using TempStorage = hearth_details::Room;

    BlockDiscontinuity() {}
    BlockDiscontinuity(TempStorage &) {}

    template <int ITEMS, class Flag, class Op>
    void FlagHeads(Flag (&heads)[ITEMS], T (&input)[ITEMS], T (&preds)[ITEMS], Op op) {
        flag(heads, static_cast<Flag *>(nullptr), input, preds, op, nullptr, nullptr);
    }
    template <int ITEMS, class Flag, class Op>
    void FlagHeads(Flag (&heads)[ITEMS], T (&input)[ITEMS], T (&preds)[ITEMS], Op op, T tile_predecessor) {
        flag(heads, static_cast<Flag *>(nullptr), input, preds, op, &tile_predecessor, nullptr);
    }
    template <int ITEMS, class Flag, class Op>
    void FlagHeads(Flag (&heads)[ITEMS], T (&input)[ITEMS], Op op) {
        flag(heads, static_cast<Flag *>(nullptr), input, nullptr, op, nullptr, nullptr);
    }
    template <int ITEMS, class Flag, class Op>
    void FlagHeads(Flag (&heads)[ITEMS], T (&input)[ITEMS], Op op, T tile_predecessor) {
        flag(heads, static_cast<Flag *>(nullptr), input, nullptr, op, &tile_predecessor, nullptr);
    }
    template <int ITEMS, class Flag, class Op>
    void FlagTails(Flag (&tails)[ITEMS], T (&input)[ITEMS], Op op) {
        flag(static_cast<Flag *>(nullptr), tails, input, nullptr, op, nullptr, nullptr);
    }
    template <int ITEMS, class Flag, class Op>
    void FlagTails(Flag (&tails)[ITEMS], T (&input)[ITEMS], Op op, T tile_successor) {
        flag(static_cast<Flag *>(nullptr), tails, input, nullptr, op, nullptr, &tile_successor);
    }
    template <int ITEMS, class Flag, class Op>
    void FlagHeadsAndTails(Flag (&heads)[ITEMS], Flag (&tails)[ITEMS], T (&input)[ITEMS], Op op) {
        flag(heads, tails, input, nullptr, op, nullptr, nullptr);
    }
    template <int ITEMS, class Flag, class Op>
    void FlagHeadsAndTails(Flag (&heads)[ITEMS], Flag (&tails)[ITEMS], T tile_successor, T (&input)[ITEMS], Op op) {
        flag(heads, tails, input, nullptr, op, nullptr, &tile_successor);
    }
    template <int ITEMS, class Flag, class Op>
    void FlagHeadsAndTails(Flag (&heads)[ITEMS], T tile_predecessor, Flag (&tails)[ITEMS], T (&input)[ITEMS], Op op) {
        flag(heads, tails, input, nullptr, op, &tile_predecessor, nullptr);
    }
    template <int ITEMS, class Flag, class Op>
    void FlagHeadsAndTails(Flag (&heads)[ITEMS], T tile_predecessor, Flag (&tails)[ITEMS], T tile_successor, T (&input)[ITEMS],
                           Op op) {
        flag(heads, tails, input, nullptr, op, &tile_predecessor, &tile_successor);
    }
};

}  // namespace cub
#include "../../hearth/macros_end.h"
