// cub::WarpStore: as BlockStore, of the lanes of a logical warp.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/hearth_arrangement.cuh>

namespace cub {

enum WarpStoreAlgorithm { WARP_STORE_DIRECT, WARP_STORE_STRIPED, WARP_STORE_VECTORIZE, WARP_STORE_TRANSPOSE };

template <class T, int ITEMS_PER_THREAD, WarpStoreAlgorithm ALGORITHM = WARP_STORE_DIRECT,
          int LOGICAL_WARP_THREADS = 32>
class WarpStore {
    using Lanes = hearth::LogicalWarp<LOGICAL_WARP_THREADS>;

public:
    using TempStorage = hearth_details::Room;

    WarpStore() {}
    WarpStore(TempStorage &) {}

    template <class Iterator>
    void Store(Iterator to, T (&items)[ITEMS_PER_THREAD]) {
        Store(to, items, hearth_details::no_end);
    }
    template <class Iterator>
    void Store(Iterator to, T (&items)[ITEMS_PER_THREAD], int valid_items) {
        const int lane = static_cast<int>(Lanes::rank());
        if constexpr (ALGORITHM == WARP_STORE_TRANSPOSE) __syncwarp(Lanes::mask());
        if constexpr (ALGORITHM == WARP_STORE_STRIPED) {
            StoreDirectStriped<LOGICAL_WARP_THREADS>(lane, to, items, valid_items);
        } else {
            StoreDirectBlocked(lane, to, items, valid_items);
        }
    }
};

}  // namespace cub
#include "../../hearth/macros_end.h"
