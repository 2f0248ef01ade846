// cub::WarpLoad: as BlockLoad, of the lanes of a logical warp.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/hearth_arrangement.cuh>

namespace cub {

enum WarpLoadAlgorithm { WARP_LOAD_DIRECT, WARP_LOAD_STRIPED, WARP_LOAD_VECTORIZE, WARP_LOAD_TRANSPOSE };

template <class T, int ITEMS_PER_THREAD, WarpLoadAlgorithm ALGORITHM = WARP_LOAD_DIRECT, int LOGICAL_WARP_THREADS = 32>
class WarpLoad {
    using Lanes = hearth::LogicalWarp<LOGICAL_WARP_THREADS>;

public:
    using TempStorage = hearth_details::Room;

    WarpLoad() {}
    WarpLoad(TempStorage &) {}

    template <class Iterator>
    void Load(Iterator from, T (&items)[ITEMS_PER_THREAD]) {
        Load(from, items, hearth_details::no_end);
    }
    template <class Iterator>
    void Load(Iterator from, T (&items)[ITEMS_PER_THREAD], int valid_items) {
        const int lane = static_cast<int>(Lanes::rank());
        if constexpr (ALGORITHM == WARP_LOAD_STRIPED) {
            LoadDirectStriped<LOGICAL_WARP_THREADS>(lane, from, items, valid_items);
        } else {
            LoadDirectBlocked(lane, from, items, valid_items);
        }
        if constexpr (ALGORITHM == WARP_LOAD_TRANSPOSE) __syncwarp(Lanes::mask());
    }
    template <class Iterator, class Default>
    void Load(Iterator from, T (&items)[ITEMS_PER_THREAD], int valid_items, Default outside) {
        for (T &item : items) item = outside;
        Load(from, items, valid_items);
    }
};

}  // namespace cub
#include "../../hearth/macros_end.h"
