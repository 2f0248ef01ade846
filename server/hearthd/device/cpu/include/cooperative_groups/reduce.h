// reduce() over a tile or a coalesced group.
#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups {

template <class T> struct plus { T operator()(T a, T b) const { return a + b; } };
template <class T> struct less { T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T> struct greater { T operator()(T a, T b) const { return a < b ? b : a; } };
template <class T> struct bit_and { T operator()(T a, T b) const { return a & b; } };
template <class T> struct bit_or { T operator()(T a, T b) const { return a | b; } };
template <class T> struct bit_xor { T operator()(T a, T b) const { return a ^ b; } };

namespace details {
// The butterfly that GPUs use where the group is a full power of two, so that sums of floats come out the same there.
template <class Group, class T, class Fn>
inline T combine(const Group &group, T value, Fn fn) {
    const unsigned size = group.size(), rank = group.thread_rank();
    if ((size & (size - 1)) == 0) {
        for (unsigned step = size / 2; step > 0; step /= 2) value = fn(value, group.shfl_xor(value, step));
        return value;
    }
    T total = group.shfl(value, 0);
    for (unsigned i = 1; i < size; ++i) total = fn(total, group.shfl(value, static_cast<int>(i)));
    (void)rank;
    return total;
}
}  // namespace details

template <class Group, class T, class Fn>
inline std::decay_t<T> reduce(const Group &group, T &&value, Fn &&fn) {
    return details::combine(group, static_cast<std::decay_t<T>>(value), fn);
}

}  // namespace cooperative_groups
