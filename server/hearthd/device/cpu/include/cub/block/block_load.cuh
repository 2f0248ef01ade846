// cub::BlockLoad. The transposing algorithms synchronise, as on a GPU, before the items can be used.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/hearth_arrangement.cuh>

namespace cub {

enum BlockLoadAlgorithm {
    BLOCK_LOAD_DIRECT,
    BLOCK_LOAD_STRIPED,
    BLOCK_LOAD_VECTORIZE,
    BLOCK_LOAD_TRANSPOSE,
    BLOCK_LOAD_WARP_TRANSPOSE,
    BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED
};

template <class T, int BLOCK_DIM_X, int ITEMS_PER_THREAD, BlockLoadAlgorithm ALGORITHM = BLOCK_LOAD_DIRECT,
          int BLOCK_DIM_Y = 1, int BLOCK_DIM_Z = 1>
class BlockLoad {
    static constexpr int Threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z;

public:
    using TempStorage = hearth_details::Room;

    BlockLoad() : thread_(static_cast<int>(hearth::thread_rank())) {}
    BlockLoad(TempStorage &) : BlockLoad() {}

    template <class Iterator>
    void Load(Iterator from, T (&items)[ITEMS_PER_THREAD]) {
        Load(from, items, hearth_details::no_end);
    }
    template <class Iterator>
    void Load(Iterator from, T (&items)[ITEMS_PER_THREAD], int end) {
        if constexpr (ALGORITHM == BLOCK_LOAD_STRIPED) LoadDirectStriped<Threads>(thread_, from, items, end);
        else LoadDirectBlocked(thread_, from, items, end);
        if constexpr (ALGORITHM == BLOCK_LOAD_TRANSPOSE) __syncthreads();
        if constexpr (ALGORITHM == BLOCK_LOAD_WARP_TRANSPOSE) __syncwarp();
        if constexpr (ALGORITHM == BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED) __syncthreads();
    }
    template <class Iterator, class Default>
    void Load(Iterator from, T (&items)[ITEMS_PER_THREAD], int end, Default outside) {
        for (T &item : items) item = outside;
        Load(from, items, end);
    }

private:
    int thread_;
};

}  // namespace cub
#include "../../hearth/macros_end.h"
