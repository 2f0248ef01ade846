// Reductions and scans over lanes, in the steps that GPUs use, so that sums of floats have the same results.
#pragma once
#include "../../cooperative_groups.h"

namespace cooperative_groups {

template <class T> struct plus { T operator()(const T &a, const T &b) const { return a + b; } };
template <class T> struct less { T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T> struct greater { T operator()(T a, T b) const { return a < b ? b : a; } };
template <class T> struct bit_and { T operator()(const T &a, const T &b) const { return a & b; } };
template <class T> struct bit_or { T operator()(const T &a, const T &b) const { return a | b; } };
template <class T> struct bit_xor { T operator()(const T &a, const T &b) const { return a ^ b; } };

namespace details {

// True if one lane may compute the results of all lanes: the operation depends on its arguments only.
template <class Op, class T>
inline constexpr bool is_plain_op =
    std::is_arithmetic_v<T> && sizeof(T) <= 8 &&
    (std::is_same_v<Op, plus<T>> || std::is_same_v<Op, less<T>> || std::is_same_v<Op, greater<T>> ||
     std::is_same_v<Op, bit_and<T>> || std::is_same_v<Op, bit_or<T>> || std::is_same_v<Op, bit_xor<T>>);

// Inclusive scan of elements in the order of their ranks: element i becomes the combination of elements 0 to i.
template <class T, class Op>
inline void scan_elements(T *elements, unsigned count, Op &op) {
    for (unsigned step = 1; step < count; step *= 2) {
        for (unsigned i = count; i-- > step;) elements[i] = op(elements[i], elements[i - step]);
    }
}

// Reduces `count` elements, a power of two, by a butterfly.
template <class T, class Op>
inline T reduce_elements(T *elements, unsigned count, unsigned rank, Op &op) {
    for (unsigned step = count / 2; step > 0; step /= 2) {
        for (unsigned i = 0; i < count; ++i) {
            if ((i & step) != 0) continue;
            const T low = elements[i], high = elements[i + step];
            elements[i] = op(low, high);
            elements[i + step] = op(high, low);
        }
    }
    return elements[rank];
}

template <class T>
inline unsigned take(const hearth::WarpLanes &lanes, uint32_t mask, T *elements) {
    unsigned count = 0;
    hearth::each_lane(mask, [&](unsigned lane) { elements[count++] = hearth::value_of<T>(lanes.value[lane]); });
    return count;
}
template <class T>
inline void give(hearth::WarpLanes &lanes, uint32_t mask, const T *elements) {
    hearth::each_lane(mask, [&](unsigned lane) { lanes.result[lane] = hearth::bits_of(*elements++); });
}
template <class T, class Op>
inline void finish_plain_scan(hearth::WarpLanes &lanes, uint32_t mask) {
    T elements[32];
    Op op;
    scan_elements(elements, take(lanes, mask, elements), op);
    give(lanes, mask, elements);
}
template <class T, class Op>
inline void finish_plain_reduce(hearth::WarpLanes &lanes, uint32_t mask) {
    T elements[32];
    Op op;
    const unsigned count = take(lanes, mask, elements);
    if ((count & (count - 1)) == 0) {
        reduce_elements(elements, count, 0, op);
    } else {  // threads of the tile are missing
        scan_elements(elements, count, op);
        for (unsigned i = 0; i < count; ++i) elements[i] = elements[count - 1];
    }
    give(lanes, mask, elements);
}

// Inclusive scan over the lanes of `mask`: op(a lane's element, the combination of the elements before it).
template <class T, class Op>
inline T scan_lanes(unsigned mask, const T &element, Op &op) {
    if constexpr (is_plain_op<Op, T>) {
        const uint64_t bits = hearth::bits_of(element);
        return hearth::value_of<T>(hearth::warp_collective(mask, bits, 0, finish_plain_scan<T, Op>));
    } else {
        const unsigned lane = hearth::lane_id(), size = static_cast<unsigned>(__builtin_popcount(mask));
        const unsigned rank = static_cast<unsigned>(__builtin_popcount(mask & bits_below(lane)));
        T total = element;
        for (unsigned step = 1; step < size; step *= 2) {
            const T before = move(mask, total, rank >= step ? lane_of(mask, rank - step) : lane);
            if (rank >= step) total = op(total, before);
        }
        return total;
    }
}

// `Size` is 0 for a coalesced group, whose lanes are combined differently if it is a whole warp.
template <unsigned Size, class T, class Op>
inline T reduce_lanes(unsigned mask, const T &element, Op &op) {
    if (Size == 0 && mask != whole_warp) {
        return move(mask, scan_lanes(mask, element, op), 31 - static_cast<unsigned>(__builtin_clz(mask)));
    }
    if constexpr (is_plain_op<Op, T>) {
        const uint64_t bits = hearth::bits_of(element);
        return hearth::value_of<T>(hearth::warp_collective(mask, bits, 0, finish_plain_reduce<T, Op>));
    } else {
        T total = element;
        for (unsigned step = (Size == 0 ? 32 : Size) / 2; step > 0; step /= 2) {
            total = op(total, move(mask, total, hearth::lane_id() ^ step));
        }
        return total;
    }
}

// Exclusive: the combination of the elements before each rank. The first rank gets T(), which is zero for numbers.
template <class Group, class T>
inline T shifted(const Group &group, const T &inclusive) {
    const T before = group.shfl_up(inclusive, 1);
    return group.thread_rank() == 0 ? T{} : before;
}

template <class Group, class T, class Result>
inline constexpr void check_collective() {
    static_assert(tile_size<Group> <= 1024, "reductions and scans take a tile or a coalesced group");
    static_assert(std::is_same_v<T, plain<Result>>, "the operation gives a type other than that of its arguments");
}

// Applies `op` to an atomic variable, cuda::atomic or cuda::atomic_ref; returns its previous value.
template <class Atomic, class T, class Op>
inline T update(Atomic &atomic, const T &element, Op &op) {
    T old = atomic.load();
    while (!atomic.compare_exchange_strong(old, op(old, element))) {}
    return old;
}

}  // namespace details
}  // namespace cooperative_groups
