// cub::WarpMergeSort.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/hearth_merge_sort.cuh>

namespace cub {

template <class KeyT, int ITEMS_PER_THREAD, int LOGICAL_WARP_THREADS = 32, class ValueT = NullType>
class WarpMergeSort
    : public hearth_details::MergeSort<WarpMergeSort<KeyT, ITEMS_PER_THREAD, LOGICAL_WARP_THREADS, ValueT>, KeyT,
                                       ITEMS_PER_THREAD, ValueT> {
    static constexpr unsigned Size = LOGICAL_WARP_THREADS;
    template <class Compare>
    struct Record : hearth_details::SortRecord<KeyT, ValueT, ITEMS_PER_THREAD, Compare> {
        static void finish(const hearth::LaneRecords<Record, Size> &lanes) {
            for (unsigned rank = 0; rank < Size; ++rank) {
                if (lanes.at(rank) == nullptr) hearth::trap("cub::WarpMergeSort: a lane of the logical warp is missing");
            }
            hearth_details::merge_sort_all<KeyT, ValueT, ITEMS_PER_THREAD, Compare>(
                Size, [&](uint32_t rank) -> const Record & { return *lanes.at(rank); });
        }
    };

public:
    using TempStorage = hearth_details::Room;
    WarpMergeSort(TempStorage &) {}
    static unsigned get_linear_tid() { return hearth::LogicalWarp<Size>::rank(); }
    static unsigned get_member_mask() { return hearth::LogicalWarp<Size>::mask(); }

    template <class Compare>
    static void meet(KeyT *keys, ValueT *values, Compare &less, int valid, const KeyT *outside) {
        Record<Compare> own{{keys, values, &less, valid, outside}};
        hearth::warp_meet<Size>(own);
    }
};

}  // namespace cub
#include "../../hearth/macros_end.h"
