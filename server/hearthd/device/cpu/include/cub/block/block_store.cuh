// cub::BlockStore. The transposing algorithms synchronise, as on a GPU, before the first item is stored.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/hearth_arrangement.cuh>

namespace cub {

enum BlockStoreAlgorithm {
    BLOCK_STORE_DIRECT,
    BLOCK_STORE_STRIPED,
    BLOCK_STORE_VECTORIZE,
    BLOCK_STORE_TRANSPOSE,
    BLOCK_STORE_WARP_TRANSPOSE,
    BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED
};

template <class T, int BLOCK_DIM_X, int ITEMS_PER_THREAD, BlockStoreAlgorithm ALGORITHM = BLOCK_STORE_DIRECT,
          int BLOCK_DIM_Y = 1, int BLOCK_DIM_Z = 1>
class BlockStore {
    static constexpr int Threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z;

public:
    using TempStorage = hearth_details::Room;

    BlockStore() : thread_(static_cast<int>(hearth::thread_rank())) {}
    BlockStore(TempStorage &) : BlockStore() {}

    template <class Iterator>
    void Store(Iterator to, T (&items)[ITEMS_PER_THREAD]) {
        Store(to, items, hearth_details::no_end);
    }
    template <class Iterator>
    void Store(Iterator to, T (&items)[ITEMS_PER_THREAD], int end) {
        if constexpr (ALGORITHM == BLOCK_STORE_TRANSPOSE) __syncthreads();
        if constexpr (ALGORITHM == BLOCK_STORE_WARP_TRANSPOSE) __syncwarp();
        if constexpr (ALGORITHM == BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED) __syncthreads();
        if constexpr (ALGORITHM == BLOCK_STORE_STRIPED) StoreDirectStriped<Threads>(thread_, to, items, end);
        else StoreDirectBlocked(thread_, to, items, end);
    }

private:
    int thread_;
};

}  // namespace cub
#include "../../hearth/macros_end.h"
