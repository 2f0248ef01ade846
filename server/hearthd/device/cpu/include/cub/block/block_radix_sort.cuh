// cub::BlockRadixSort: stable, by the bits [begin_bit, end_bit) of keys in their bitwise order; -0.0 equals 0.0.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/block/block_scan.cuh>
#include <cub/hearth_scratch.cuh>

namespace cub {
namespace hearth_details {

// Unsigned integers in the order of the keys.
template <class Key>
struct KeyBits {
    static constexpr bool is_float = !std::is_integral<Key>::value && std::is_convertible<Key, float>::value;
    static_assert(std::is_integral<Key>::value || is_float,
                  "HEARTH-UNSUPPORTED: cub::BlockRadixSort of keys that are structs (with a decomposer)");
    static_assert(sizeof(Key) <= 8, "HEARTH-UNSUPPORTED: cub::BlockRadixSort of keys of more than 64 bits");
    static constexpr int bits = static_cast<int>(sizeof(Key)) * 8;
    static constexpr uint64_t mask = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << (bits % 64)) - 1;
    static constexpr uint64_t sign = uint64_t{1} << (bits - 1);

    static uint64_t of(const Key &key) {
        uint64_t raw = 0;
        __builtin_memcpy(&raw, static_cast<const void *>(&key), sizeof key);
        if (is_float) {
            if (raw == sign) raw = 0;
            return (raw & sign) != 0 ? ~raw & mask : raw | sign;
        }
        return std::is_signed<Key>::value ? raw ^ sign : raw;
    }
};

// Fills `order` with the indices of the keys in ascending order, by one counting sort for each byte.
inline void radix_order(const uint64_t *keys, uint32_t *order, uint32_t *room, uint32_t count, int begin, int end) {
    for (uint32_t i = 0; i < count; ++i) order[i] = i;
    for (int bit = begin; bit < end; bit += 8) {
        const uint64_t digits = end - bit >= 8 ? 255 : (1u << (end - bit)) - 1;
        uint32_t starts[257] = {};
        for (uint32_t i = 0; i < count; ++i) ++starts[(keys[i] >> bit & digits) + 1];
        for (int digit = 0; digit < 256; ++digit) starts[digit + 1] += starts[digit];
        for (uint32_t i = 0; i < count; ++i) room[starts[keys[order[i]] >> bit & digits]++] = order[i];
        for (uint32_t i = 0; i < count; ++i) order[i] = room[i];
    }
}

}  // namespace hearth_details

template <class KeyT, int BLOCK_DIM_X, int ITEMS_PER_THREAD, class ValueT = NullType, int RADIX_BITS = 4,
          bool MEMOIZE_OUTER_SCAN = true, BlockScanAlgorithm INNER_SCAN_ALGORITHM = BLOCK_SCAN_WARP_SCANS,
          int SMEM_CONFIG = 1, int BLOCK_DIM_Y = 1, int BLOCK_DIM_Z = 1>
class BlockRadixSort {
    static constexpr int Threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z, Items = ITEMS_PER_THREAD;
    static constexpr uint32_t Count = static_cast<uint32_t>(Threads) * Items;
    using Bits = hearth_details::KeyBits<KeyT>;
    struct Record {
        KeyT *keys;
        ValueT *values;
    };
    using Meeting = hearth::BlockMeeting<Threads, Record>;

    template <bool Descending, bool Striped>
    static void sort(KeyT (&keys)[Items], ValueT *values, int begin, int end) {
        Record own{keys, values};
        const Meeting meeting(own);
        if (meeting.leads()) all<Descending, Striped>(begin, end);
    }
    template <bool Descending, bool Striped>
    static void all(int begin, int end) {
        const bool has_values = Meeting::of(0).values != nullptr;
        hearth_details::Scratch<KeyT> keys(Count);
        hearth_details::Scratch<ValueT> values(has_values ? Count : 1);
        hearth_details::Scratch<uint64_t> bits(Count);
        hearth_details::Scratch<uint32_t> order(Count), room(Count);
        for (uint32_t at = 0; at < Count; ++at) {
            const Record &record = Meeting::of(at / Items);
            keys[at] = record.keys[at % Items];
            bits[at] = Descending ? ~Bits::of(keys[at]) & Bits::mask : Bits::of(keys[at]);
            if (has_values) values[at] = record.values[at % Items];
        }
        hearth_details::radix_order(bits, order, room, Count, begin, end < Bits::bits ? end : Bits::bits);
        for (uint32_t at = 0; at < Count; ++at) {
            const Record &record = Meeting::of(Striped ? at % Threads : at / Items);
            const uint32_t item = Striped ? at / Threads : at % Items;
            record.keys[item] = keys[order[at]];
            if (has_values) record.values[item] = values[order[at]];
        }
    }

public:
    using TempStorage = hearth_details::Room;

    BlockRadixSort() {}
    BlockRadixSort(TempStorage &) {}

    void Sort(KeyT (&keys)[Items], int begin_bit = 0, int end_bit = Bits::bits) {
        sort<false, false>(keys, nullptr, begin_bit, end_bit);
    }
    void Sort(KeyT (&keys)[Items], ValueT (&values)[Items], int begin_bit = 0, int end_bit = Bits::bits) {
        sort<false, false>(keys, values, begin_bit, end_bit);
    }
    void SortBlockedToStriped(KeyT (&keys)[Items], int begin_bit = 0, int end_bit = Bits::bits) {
        sort<false, true>(keys, nullptr, begin_bit, end_bit);
    }
    void SortBlockedToStriped(KeyT (&keys)[Items], ValueT (&values)[Items], int begin_bit = 0, int end_bit = Bits::bits) {
        sort<false, true>(keys, values, begin_bit, end_bit);
    }
    void SortDescending(KeyT (&keys)[Items], int begin_bit = 0, int end_bit = Bits::bits) {
        sort<true, false>(keys, nullptr, begin_bit, end_bit);
    }
    void SortDescending(KeyT (&keys)[Items], ValueT (&values)[Items], int begin_bit = 0, int end_bit = Bits::bits) {
        sort<true, false>(keys, values, begin_bit, end_bit);
    }
    void SortDescendingBlockedToStriped(KeyT (&keys)[Items], int begin_bit = 0, int end_bit = Bits::bits) {
        sort<true, true>(keys, nullptr, begin_bit, end_bit);
    }
    void SortDescendingBlockedToStriped(KeyT (&keys)[Items], ValueT (&values)[Items], int begin_bit = 0, int end_bit = Bits::bits) {
        sort<true, true>(keys, values, begin_bit, end_bit);
    }
};

}  // namespace cub
#include "../../hearth/macros_end.h"
