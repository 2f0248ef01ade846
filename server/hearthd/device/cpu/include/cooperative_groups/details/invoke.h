// A function that one thread of a group calls. It is the first thread, on which programs must not rely.
#pragma once

namespace cooperative_groups {

template <class Group, class Fn, class... Args>
inline void invoke_one(const Group &group, Fn &&fn, Args &&...args) {
    if (group.thread_rank() == 0) std::forward<Fn>(fn)(std::forward<Args>(args)...);
}

template <class Group, class Fn, class... Args>
inline auto invoke_one_broadcast(const Group &group, Fn &&fn, Args &&...args)
    -> std::remove_reference_t<decltype(std::forward<Fn>(fn)(std::forward<Args>(args)...))> {
    using Result = decltype(std::forward<Fn>(fn)(std::forward<Args>(args)...));
    static_assert(!std::is_void_v<Result>, "invoke_one() calls functions without a result");
    static_assert(details::tile_size<Group> <= 1024, "invoke_one_broadcast() takes a tile or a coalesced group");
    details::plain<Result> result;
    if (group.thread_rank() == 0) result = std::forward<Fn>(fn)(std::forward<Args>(args)...);
    return group.shfl(result, 0);
}

}  // namespace cooperative_groups
