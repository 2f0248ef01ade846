// cub::BlockReduce: thread 0 gets the result; the others keep their input.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/thread/thread_reduce.cuh>

namespace cub {

enum BlockReduceAlgorithm {
    BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY,
    BLOCK_REDUCE_RAKING,
    BLOCK_REDUCE_WARP_REDUCTIONS
};

template <class T, int BLOCK_DIM_X, BlockReduceAlgorithm ALGORITHM = BLOCK_REDUCE_WARP_REDUCTIONS,
          int BLOCK_DIM_Y = 1, int BLOCK_DIM_Z = 1>
class BlockReduce {
    static constexpr int Threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z;

public:
    using TempStorage = hearth_details::Room;

    BlockReduce() {}
    BlockReduce(TempStorage &) {}

    template <class Op>
    T Reduce(T input, Op op) {
        return Reduce(input, op, Threads);
    }
    template <int ITEMS, class Op>
    T Reduce(T (&inputs)[ITEMS], Op op) {
        return Reduce(static_cast<T>(internal::ThreadReduce(inputs, op)), op, Threads);
    }
    template <class Op>
    T Reduce(T input, Op op, int num_valid) {
        T total = input;
        const hearth::BlockMeeting<Threads, T> meeting(input);
        if (meeting.leads()) {
            for (int i = 1; i < Threads && i < num_valid; ++i) total = op(total, meeting.of(static_cast<unsigned>(i)));
        }
        return total;
    }
    T Sum(T input) { return Reduce(input, hearth_details::Plus(), Threads); }
    template <int ITEMS>
    T Sum(T (&inputs)[ITEMS]) {
        return Reduce(inputs, hearth_details::Plus());
    }
    T Sum(T input, int num_valid) { return Reduce(input, hearth_details::Plus(), num_valid); }
};

}  // namespace cub
#include "../../hearth/macros_end.h"
