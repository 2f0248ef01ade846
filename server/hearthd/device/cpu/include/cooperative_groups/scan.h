// inclusive_scan() and exclusive_scan() over a tile or a coalesced group, and their forms that also update an atomic
// variable by the combination of the whole group, and start from its previous value.
#pragma once
#include "../hearth/macros_begin.h"
#include "details/collectives.h"

namespace cooperative_groups {
namespace details {

enum class Scan { inclusive, exclusive };

// A tile of more than a warp: `before_warp` computes the combination of all elements before a warp from the
// combinations of the tile's warps.
template <Scan Kind, class Group, class T, class Op, class BeforeWarp>
inline T scan_warps(bool from_first, const T &element, Op &op, BeforeWarp before_warp) {
    T of_lane = scan_lanes(whole_warp, element, op);
    const T of_warp = move(whole_warp, of_lane, 31);
    const T before = Group::combined(of_warp, [&](T *of_warps) {
        scan_elements(of_warps, Group::hearth_warps, op);
        return before_warp(of_warps);
    });
    const unsigned lane = hearth::lane_id();
    if constexpr (Kind == Scan::exclusive) {
        of_lane = move(whole_warp, of_lane, lane == 0 ? 0 : lane - 1);
        if (lane == 0) return before;
    }
    return Group::hearth_warp() == 0 && !from_first ? of_lane : op(of_lane, before);
}

template <Scan Kind, class Group, class T, class Op>
inline T scan(const Group &group, const T &element, Op &op) {
    if constexpr (tile_size<Group> > 32 && tile_size<Group> <= 1024) {
        return scan_warps<Kind, Group>(false, element, op, [](T *up_to_warp) {
            const unsigned warp = Group::hearth_warp();
            return warp == 0 ? T{} : up_to_warp[warp - 1];
        });
    } else {
        const T total = scan_lanes(group.hearth_mask(), element, op);
        return Kind == Scan::inclusive ? total : shifted(group, total);
    }
}

template <Scan Kind, class Group, class Atomic, class T, class Op>
inline T scan_update(const Group &group, Atomic &atomic, const T &element, Op &op) {
    const unsigned last = group.size() - 1;
    T old = element;
    if constexpr (tile_size<Group> > 32 && tile_size<Group> <= 1024) {
        const T total = group.shfl(scan<Scan::inclusive>(group, element, op), last);
        if (group.thread_rank() == last) old = update(atomic, total, op);
        old = group.shfl(old, last);
        return scan_warps<Kind, Group>(true, element, op, [&](T *up_to_warp) {
            const unsigned warp = Group::hearth_warp();
            return warp == 0 ? old : op(up_to_warp[warp - 1], old);
        });
    } else {
        T total = scan_lanes(group.hearth_mask(), element, op);
        if (group.thread_rank() == last) old = update(atomic, total, op);
        old = group.shfl(old, static_cast<int>(last));
        if (Kind == Scan::exclusive) total = shifted(group, total);
        return op(old, total);
    }
}

}  // namespace details

template <class Group, class T, class Op>
inline auto inclusive_scan(const Group &group, T &&element, Op &&op) -> decltype(op(element, element)) {
    details::check_collective<Group, details::plain<T>, decltype(op(element, element))>();
    return details::scan<details::Scan::inclusive, Group, details::plain<T>>(group, element, op);
}
template <class Group, class T>
inline details::plain<T> inclusive_scan(const Group &group, T &&element) {
    return inclusive_scan(group, element, plus<details::plain<T>>());
}
template <class Group, class T, class Op>
inline auto exclusive_scan(const Group &group, T &&element, Op &&op) -> decltype(op(element, element)) {
    details::check_collective<Group, details::plain<T>, decltype(op(element, element))>();
    return details::scan<details::Scan::exclusive, Group, details::plain<T>>(group, element, op);
}
template <class Group, class T>
inline details::plain<T> exclusive_scan(const Group &group, T &&element) {
    return exclusive_scan(group, element, plus<details::plain<T>>());
}

template <class Group, class Atomic, class T, class Op>
inline auto inclusive_scan_update(const Group &group, Atomic &&atomic, T &&element, Op &&op)
    -> decltype(op(element, element)) {
    details::check_collective<Group, details::plain<T>, decltype(op(element, element))>();
    return details::scan_update<details::Scan::inclusive, Group, Atomic, details::plain<T>>(group, atomic, element, op);
}
template <class Group, class Atomic, class T>
inline details::plain<T> inclusive_scan_update(const Group &group, Atomic &&atomic, T &&element) {
    return inclusive_scan_update(group, atomic, element, plus<details::plain<T>>());
}
template <class Group, class Atomic, class T, class Op>
inline auto exclusive_scan_update(const Group &group, Atomic &&atomic, T &&element, Op &&op)
    -> decltype(op(element, element)) {
    details::check_collective<Group, details::plain<T>, decltype(op(element, element))>();
    return details::scan_update<details::Scan::exclusive, Group, Atomic, details::plain<T>>(group, atomic, element, op);
}
template <class Group, class Atomic, class T>
inline details::plain<T> exclusive_scan_update(const Group &group, Atomic &&atomic, T &&element) {
    return exclusive_scan_update(group, atomic, element, plus<details::plain<T>>());
}

}  // namespace cooperative_groups
#include "../hearth/macros_end.h"
