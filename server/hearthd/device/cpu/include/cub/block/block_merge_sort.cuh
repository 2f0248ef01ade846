// cub::BlockMergeSort.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/hearth_merge_sort.cuh>

namespace cub {

template <class KeyT, int BLOCK_DIM_X, int ITEMS_PER_THREAD, class ValueT = NullType, int BLOCK_DIM_Y = 1,
          int BLOCK_DIM_Z = 1>
class BlockMergeSort
    : public hearth_details::MergeSort<BlockMergeSort<KeyT, BLOCK_DIM_X, ITEMS_PER_THREAD, ValueT, BLOCK_DIM_Y, BLOCK_DIM_Z>,
                                       KeyT, ITEMS_PER_THREAD, ValueT> {
    static constexpr int Threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z;

public:
    using TempStorage = hearth_details::Room;
    BlockMergeSort() {}
    BlockMergeSort(TempStorage &) {}
    static unsigned get_linear_tid() { return hearth::thread_rank(); }

    template <class Compare>
    static void meet(KeyT *keys, ValueT *values, Compare &less, int valid, const KeyT *outside) {
        using Record = hearth_details::SortRecord<KeyT, ValueT, ITEMS_PER_THREAD, Compare>;
        Record own{keys, values, &less, valid, outside};
        const hearth::BlockMeeting<Threads, Record> meeting(own);
        if (!meeting.leads()) return;
        hearth_details::merge_sort_all<KeyT, ValueT, ITEMS_PER_THREAD, Compare>(
            Threads, [](uint32_t rank) -> const Record & { return hearth::BlockMeeting<Threads, Record>::of(rank); });
    }
};

}  // namespace cub
#include "../../hearth/macros_end.h"
