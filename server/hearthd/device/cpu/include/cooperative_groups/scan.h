// inclusive_scan() and exclusive_scan() over a tile or a coalesced group.
#pragma once
#include "reduce.h"

namespace cooperative_groups {

template <class Group, class T, class Fn>
inline std::decay_t<T> inclusive_scan(const Group &group, T &&value, Fn &&fn) {
    std::decay_t<T> total = value;
    for (unsigned step = 1; step < group.size(); step *= 2) {
        const std::decay_t<T> before = group.shfl_up(total, step);
        if (group.thread_rank() >= step) total = fn(before, total);
    }
    return total;
}
template <class Group, class T>
inline std::decay_t<T> inclusive_scan(const Group &group, T &&value) {
    return inclusive_scan(group, value, plus<std::decay_t<T>>());
}
template <class Group, class T, class Fn>
inline std::decay_t<T> exclusive_scan(const Group &group, T &&value, Fn &&fn) {
    const std::decay_t<T> total = inclusive_scan(group, value, fn), before = group.shfl_up(total, 1);
    return group.thread_rank() == 0 ? std::decay_t<T>{} : before;
}
template <class Group, class T>
inline std::decay_t<T> exclusive_scan(const Group &group, T &&value) {
    return exclusive_scan(group, value, plus<std::decay_t<T>>());
}

}  // namespace cooperative_groups
