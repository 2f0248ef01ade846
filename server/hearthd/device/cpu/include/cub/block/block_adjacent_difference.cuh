// cub::BlockAdjacentDifference. An item without a neighbour within the tile, or beyond `valid_items`, is copied.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/hearth_neighbours.cuh>

namespace cub {

template <class T, int BLOCK_DIM_X, int BLOCK_DIM_Y = 1, int BLOCK_DIM_Z = 1>
class BlockAdjacentDifference {
    static constexpr int Threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z;
    using Neighbours = hearth_details::Neighbours<T, Threads>;

    template <int ITEMS, class Out, class Op>
    static void left(T (&input)[ITEMS], Out (&output)[ITEMS], Op &op, int valid, const T *beyond) {
        T before = beyond != nullptr ? *beyond : input[0], behind = input[0];
        Neighbours::fetch(input, before, behind);
        const int base = static_cast<int>(hearth::thread_rank()) * ITEMS;
        for (int i = ITEMS - 1; i >= 0; --i) {
            const bool alone = (i == 0 && Neighbours::is_first() && beyond == nullptr) || base + i >= valid;
            output[i] = alone ? Out(input[i]) : Out(op(input[i], i == 0 ? before : input[i - 1]));
        }
    }
    template <int ITEMS, class Out, class Op>
    static void right(T (&input)[ITEMS], Out (&output)[ITEMS], Op &op, int valid, const T *beyond) {
        T before = input[0], behind = beyond != nullptr ? *beyond : input[0];
        Neighbours::fetch(input, before, behind);
        const int base = static_cast<int>(hearth::thread_rank()) * ITEMS;
        for (int i = 0; i < ITEMS; ++i) {
            const bool is_end = i == ITEMS - 1;
            const bool alone = (is_end && Neighbours::is_last() && beyond == nullptr) || base + i >= valid - 1;
            output[i] = alone ? Out(input[i]) : Out(op(input[i], is_end ? behind : input[i + 1]));
        }
    }
    static constexpr int all = 0x7fffffff;

public:
    using TempStorage = hearth_details::Room;

    BlockAdjacentDifference() {}
    BlockAdjacentDifference(TempStorage &) {}

    template <int ITEMS, class Out, class Op>
    void SubtractLeft(T (&input)[ITEMS], Out (&output)[ITEMS], Op op) {
        left(input, output, op, all, nullptr);
    }
    template <int ITEMS, class Out, class Op>
    void SubtractLeft(T (&input)[ITEMS], Out (&output)[ITEMS], Op op, T tile_predecessor) {
        left(input, output, op, all, &tile_predecessor);
    }
    template <int ITEMS, class Out, class Op>
    void SubtractLeftPartialTile(T (&input)[ITEMS], Out (&output)[ITEMS], Op op, int valid_items) {
        left(input, output, op, valid_items, nullptr);
    }
    template <int ITEMS, class Out, class Op>
    void SubtractLeftPartialTile(
        T (&input)[ITEMS], Out (&output)[ITEMS], Op op, int valid_items, T tile_predecessor) {
        left(input, output, op, valid_items, &tile_predecessor);
    }
    template <int ITEMS, class Out, class Op>
    void SubtractRight(T (&input)[ITEMS], Out (&output)[ITEMS], Op op) {
        right(input, output, op, all, nullptr);
    }
    template <int ITEMS, class Out, class Op>
    void SubtractRight(T (&input)[ITEMS], Out (&output)[ITEMS], Op op, T tile_successor) {
        right(input, output, op, all, &tile_successor);
    }
    template <int ITEMS, class Out, class Op>
    void SubtractRightPartialTile(T (&input)[ITEMS], Out (&output)[ITEMS], Op op, int valid_items) {
        right(input, output, op, valid_items, nullptr);
    }
};

}  // namespace cub
#include "../../hearth/macros_end.h"
