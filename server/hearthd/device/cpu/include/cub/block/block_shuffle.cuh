// cub::BlockShuffle. An item whose source is outside the block is not changed.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/hearth_neighbours.cuh>

namespace cub {

template <class T, int BLOCK_DIM_X, int BLOCK_DIM_Y = 1, int BLOCK_DIM_Z = 1>
class BlockShuffle {
    static constexpr int Threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z;
    using Meeting = hearth::BlockMeeting<Threads, T>;

    static void fetch(T input, T &output, int from) {
        const Meeting meeting(input);
        if (from >= 0 && from < Threads) output = meeting.of(static_cast<unsigned>(from));
    }
    static int thread() { return static_cast<int>(hearth::thread_rank()); }

public:
    using TempStorage = hearth_details::Room;

    BlockShuffle() {}
    BlockShuffle(TempStorage &) {}

    void Offset(T input, T &output, int distance = 1) { fetch(input, output, thread() + distance); }
    void Rotate(T input, T &output, unsigned distance = 1) {
        fetch(input, output, static_cast<int>((static_cast<unsigned>(thread()) + distance) % Threads));
    }
    template <int ITEMS>
    void Up(T (&input)[ITEMS], T (&prev)[ITEMS]) {
        const T last = input[ITEMS - 1];
        for (int i = ITEMS - 1; i > 0; --i) prev[i] = input[i - 1];
        fetch(last, prev[0], thread() - 1);
    }
    template <int ITEMS>
    void Up(T (&input)[ITEMS], T (&prev)[ITEMS], T &block_suffix) {
        const T last = input[ITEMS - 1];
        Up(input, prev);
        fetch(last, block_suffix, Threads - 1);
    }
    template <int ITEMS>
    void Down(T (&input)[ITEMS], T (&prev)[ITEMS]) {
        const T first = input[0];
        for (int i = 0; i < ITEMS - 1; ++i) prev[i] = input[i + 1];
        fetch(first, prev[ITEMS - 1], thread() + 1);
    }
    template <int ITEMS>
    void Down(T (&input)[ITEMS], T (&prev)[ITEMS], T &block_prefix) {
        const T first = input[0];
        Down(input, prev);
        fetch(first, block_prefix, 0);
    }
};

}  // namespace cub
#include "../../hearth/macros_end.h"
