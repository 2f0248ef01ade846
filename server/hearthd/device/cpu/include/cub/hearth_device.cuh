// CUB's device-wide algorithms, refused by name if a program calls one, because they launch kernels.
#pragma once
#include "../hearth/macros_begin.h"
#include <cub/config.cuh>

namespace cub {
namespace hearth_details {

template <class... A>
constexpr int refuse_device_wide() {
    static_assert(sizeof...(A) == ~size_t{0}, "HEARTH-UNSUPPORTED: CUB's device-wide algorithms (cub::Device*)");
    return 0;
}

}  // namespace hearth_details

#define HEARTH_CALL(name) \
    template <class... A> \
    static int name(A &&...) { \
        return hearth_details::refuse_device_wide<A...>(); \
    }
struct DeviceReduce {
    HEARTH_CALL(Reduce) HEARTH_CALL(Sum) HEARTH_CALL(Min) HEARTH_CALL(Max) HEARTH_CALL(ArgMin) HEARTH_CALL(ArgMax)
    HEARTH_CALL(ReduceByKey) HEARTH_CALL(TransformReduce)
};
struct DeviceScan {
    HEARTH_CALL(ExclusiveSum) HEARTH_CALL(ExclusiveScan) HEARTH_CALL(InclusiveSum) HEARTH_CALL(InclusiveScan)
    HEARTH_CALL(ExclusiveSumByKey) HEARTH_CALL(InclusiveSumByKey) HEARTH_CALL(InclusiveScanInit)
};
struct DeviceRadixSort {
    HEARTH_CALL(SortPairs) HEARTH_CALL(SortPairsDescending) HEARTH_CALL(SortKeys) HEARTH_CALL(SortKeysDescending)
};
struct DeviceMergeSort {
    HEARTH_CALL(SortPairs) HEARTH_CALL(SortKeys) HEARTH_CALL(StableSortPairs) HEARTH_CALL(StableSortKeys)
};
struct DeviceSelect {
    HEARTH_CALL(Flagged) HEARTH_CALL(If) HEARTH_CALL(Unique) HEARTH_CALL(UniqueByKey)
};
struct DevicePartition {
    HEARTH_CALL(Flagged) HEARTH_CALL(If)
};
struct DeviceHistogram {
    HEARTH_CALL(HistogramEven) HEARTH_CALL(HistogramRange) HEARTH_CALL(MultiHistogramEven)
};
struct DeviceRunLengthEncode {
    HEARTH_CALL(Encode) HEARTH_CALL(NonTrivialRuns)
};
struct DeviceSegmentedReduce {
    HEARTH_CALL(Reduce) HEARTH_CALL(Sum) HEARTH_CALL(Min) HEARTH_CALL(Max)
};
struct DeviceFor {
    HEARTH_CALL(Bulk) HEARTH_CALL(ForEach) HEARTH_CALL(ForEachN)
};
#undef HEARTH_CALL

}  // namespace cub
#include "../hearth/macros_end.h"
