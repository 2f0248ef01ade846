// cub::BlockHistogram: items are numbers of bins.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/util_type.cuh>

namespace cub {

enum BlockHistogramAlgorithm { BLOCK_HISTO_SORT, BLOCK_HISTO_ATOMIC };

template <class T, int BLOCK_DIM_X, int ITEMS_PER_THREAD, int BINS,
          BlockHistogramAlgorithm ALGORITHM = BLOCK_HISTO_SORT, int BLOCK_DIM_Y = 1, int BLOCK_DIM_Z = 1>
class BlockHistogram {
    static constexpr int Threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z;

public:
    using TempStorage = hearth_details::Room;

    BlockHistogram() {}
    BlockHistogram(TempStorage &) {}

    template <class Counter>
    void InitHistogram(Counter *histogram) {
        for (int bin = static_cast<int>(hearth::thread_rank()); bin < BINS; bin += Threads) histogram[bin] = 0;
    }
    template <class Counter>
    void Histogram(T (&items)[ITEMS_PER_THREAD], Counter *histogram) {
        InitHistogram(histogram);
        __syncthreads();
        Composite(items, histogram);
    }
    template <class Counter>
    void Composite(T (&items)[ITEMS_PER_THREAD], Counter *histogram) {
        if (ALGORITHM == BLOCK_HISTO_SORT) __syncthreads();  // as its sort does
        for (const T &item : items) {
            if constexpr (std::is_integral<Counter>::value) {
                __atomic_fetch_add(histogram + static_cast<size_t>(item), Counter{1}, __ATOMIC_RELAXED);
            } else {
                atomicAdd(histogram + static_cast<size_t>(item), Counter{1});
            }
        }
    }
};

}  // namespace cub
#include "../../hearth/macros_end.h"
