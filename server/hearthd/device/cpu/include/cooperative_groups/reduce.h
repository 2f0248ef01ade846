// reduce() over a tile or a coalesced group, and its forms that store the result.
#pragma once
#include "../hearth/macros_begin.h"
#include "details/collectives.h"

namespace cooperative_groups {

template <class Group, class T, class Op>
inline auto reduce(const Group &group, T &&element, Op &&op) -> decltype(op(element, element)) {
    using Value = details::plain<T>;
    constexpr unsigned size = details::tile_size<Group>;
    details::check_collective<Group, Value, decltype(op(element, element))>();
    const Value own = element;
    if constexpr (size > 32 && size <= 1024) {
        const Value of_warp = details::reduce_lanes<32>(details::whole_warp, own, op);
        return Group::combined(of_warp, [&](Value *of_warps) {
            return details::reduce_elements(of_warps, size / 32, Group::hearth_warp(), op);
        });
    } else {
        return details::reduce_lanes<size>(group.hearth_mask(), own, op);
    }
}

// The destination has the result when the group has synchronised.
template <class Group, class T, class V, class Op>
inline void reduce_store_async(const Group &group, T *destination, V &&element, Op &&op) {
    const T total = reduce(group, std::forward<V>(element), op);
    if (group.thread_rank() == 0) *destination = total;
}
template <class Group, class Atomic, class V, class Op>
inline auto reduce_store_async(const Group &group, Atomic &&destination, V &&element, Op &&op)
    -> decltype(destination.store(element)) {
    const details::plain<V> total = reduce(group, std::forward<V>(element), op);
    if (group.thread_rank() == 0) destination.store(total);
}
template <class Group, class Atomic, class V, class Op>
inline void reduce_update_async(const Group &group, Atomic &&destination, V &&element, Op &&op) {
    const details::plain<V> total = reduce(group, std::forward<V>(element), op);
    if (group.thread_rank() == 0) details::update(destination, total, op);
}

}  // namespace cooperative_groups
#include "../hearth/macros_end.h"
