// Stable merge sorts of the keys, and the values that belong to them, of all threads of a block or lanes of a warp.
#pragma once
#include "../hearth/macros_begin.h"
#include <cub/hearth_scratch.cuh>

namespace cub {
namespace hearth_details {

template <class Key, class Value, int Items, class Compare>
struct SortRecord {
    Key *keys;
    Value *values;
    Compare *less;
    int valid;
    const Key *outside;  // replaces the keys from `valid` on
};

// `record(i)` is the record of the i-th thread.
template <class Key, class Value, int Items, class Compare, class Records>
inline void merge_sort_all(uint32_t threads, Records record) {
    const auto &first = record(0);
    Compare &less = *first.less;
    const bool has_values = first.values != nullptr;
    const uint32_t count = threads * Items;
    Scratch<Key> keys(count);
    Scratch<Value> values(has_values ? count : 1);
    Scratch<uint32_t> left(count), right(count);
    uint32_t *order = left, *room = right;
    for (uint32_t at = 0; at < count; ++at) {
        const auto &own = record(at / Items);
        keys[at] = static_cast<int>(at) < first.valid ? own.keys[at % Items] : *first.outside;
        if (has_values) values[at] = own.values[at % Items];
        order[at] = at;
    }
    for (uint32_t width = 1; width < count; width *= 2) {
        for (uint32_t low = 0; low < count; low += 2 * width) {
            const uint32_t middle = low + width < count ? low + width : count;
            const uint32_t high = low + 2 * width < count ? low + 2 * width : count;
            uint32_t a = low, b = middle;
            for (uint32_t to = low; to < high; ++to) {
                const bool from_b = a == middle || (b < high && less(keys[order[b]], keys[order[a]]));
                room[to] = order[from_b ? b++ : a++];
            }
        }
        uint32_t *const swap = order;
        order = room;
        room = swap;
    }
    for (uint32_t at = 0; at < count; ++at) {
        const auto &own = record(at / Items);
        own.keys[at % Items] = keys[order[at]];
        if (has_values) own.values[at % Items] = values[order[at]];
    }
}

// The interface: `Derived::meet(keys, values, less, valid, outside)` lets the threads meet.
template <class Derived, class KeyT, int Items, class ValueT>
class MergeSort {
public:
    using TempStorage = Room;

    template <class Compare>
    void Sort(KeyT (&keys)[Items], Compare less) {
        Derived::meet(keys, nullptr, less, no_bound, keys);
    }
    template <class Compare>
    void Sort(KeyT (&keys)[Items], Compare less, int valid_items, KeyT oob_default) {
        Derived::meet(keys, nullptr, less, valid_items, &oob_default);
    }
    template <class Compare>
    void Sort(KeyT (&keys)[Items], ValueT (&values)[Items], Compare less) {
        Derived::meet(keys, values, less, no_bound, keys);
    }
    template <class Compare, bool IS_LAST_TILE = true>
    void Sort(KeyT (&keys)[Items], ValueT (&values)[Items], Compare less, int valid_items, KeyT oob_default) {
        Derived::meet(keys, values, less, IS_LAST_TILE ? valid_items : no_bound, &oob_default);
    }
    template <class Compare>
    void StableSort(KeyT (&keys)[Items], Compare less) {
        Sort(keys, less);
    }
    template <class Compare>
    void StableSort(KeyT (&keys)[Items], Compare less, int valid_items, KeyT oob_default) {
        Sort(keys, less, valid_items, oob_default);
    }
    template <class Compare>
    void StableSort(KeyT (&keys)[Items], ValueT (&values)[Items], Compare less) {
        Sort(keys, values, less);
    }
    template <class Compare, bool IS_LAST_TILE = true>
    void StableSort(KeyT (&keys)[Items], ValueT (&values)[Items], Compare less, int valid_items, KeyT oob_default) {
        Sort<Compare, IS_LAST_TILE>(keys, values, less, valid_items, oob_default);
    }

private:
    static constexpr int no_bound = 0x7fffffff;
};

}  // namespace hearth_details
}  // namespace cub
#include "../hearth/macros_end.h"
