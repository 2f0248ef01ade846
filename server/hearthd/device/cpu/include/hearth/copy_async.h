// cuda::memcpy_async as a copy that is complete when the call returns: no barrier or pipeline needs to be notified.
#pragma once

namespace hearth {

// The part of a group's copy that belongs to this thread.
template <class Group>
inline void copy_share(const Group &group, void *to, const void *from, size_t bytes) {
    const size_t members = group.size(), rank = group.thread_rank();
    const size_t share = ((bytes + members - 1) / members + 15) & ~size_t{15};
    const size_t first = rank * share;
    if (first >= bytes) return;
    const size_t count = bytes - first < share ? bytes - first : share;
    __builtin_memcpy(static_cast<char *>(to) + first, static_cast<const char *>(from) + first, count);
}

inline bool is_aligned(const void *to, const void *from, size_t bytes, size_t alignment) {
    return ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes) & (alignment - 1)) == 0;
}

}  // namespace hearth

namespace cuda {

enum async_contract_fulfillment { none, async };

// A size in bytes; it and both pointers are multiples of the alignment.
template <size_t Alignment>
struct aligned_size_t {
    static constexpr size_t align = Alignment;
    size_t value;
    explicit constexpr aligned_size_t(size_t size) : value(size) {}
    constexpr operator size_t() const { return value; }
};

namespace hearth_details {

template <class Size>
inline size_t checked_size(const void *, const void *, const Size &size) {
    return static_cast<size_t>(size);
}
template <size_t Alignment>
inline size_t checked_size(const void *to, const void *from, const aligned_size_t<Alignment> &size) {
    if (!hearth::is_aligned(to, from, size.value, Alignment)) {
        hearth::trap("cuda::memcpy_async: a pointer or the size is not a multiple of the alignment");
    }
    return size.value;
}

// The objects that can track a copy: barriers and pipelines.
template <class T>
struct is_completion : std::false_type {};

}  // namespace hearth_details

// Copies by a group, each member of which copies its part, and by a single thread.
template <class Group, class Size, class Completion,
          class = std::enable_if_t<hearth_details::is_completion<Completion>::value>>
inline async_contract_fulfillment memcpy_async(
    const Group &group, void *to, const void *from, Size size, Completion &) {
    hearth::copy_share(group, to, from, hearth_details::checked_size(to, from, size));
    return async_contract_fulfillment::none;
}
template <class Group, class T, class Size, class Completion,
          class = std::enable_if_t<hearth_details::is_completion<Completion>::value>>
inline async_contract_fulfillment memcpy_async(const Group &group, T *to, const T *from, Size size, Completion &) {
    static_assert(std::is_trivially_copyable<T>::value, "memcpy_async copies trivially copyable types");
    hearth::copy_share(group, to, from, hearth_details::checked_size(to, from, size));
    return async_contract_fulfillment::none;
}
template <class Size, class Completion, class = std::enable_if_t<hearth_details::is_completion<Completion>::value>>
inline async_contract_fulfillment memcpy_async(void *to, const void *from, Size size, Completion &) {
    __builtin_memcpy(to, from, hearth_details::checked_size(to, from, size));
    return async_contract_fulfillment::none;
}
template <class T, class Size, class Completion,
          class = std::enable_if_t<hearth_details::is_completion<Completion>::value>>
inline async_contract_fulfillment memcpy_async(T *to, const T *from, Size size, Completion &) {
    static_assert(std::is_trivially_copyable<T>::value, "memcpy_async copies trivially copyable types");
    __builtin_memcpy(to, from, hearth_details::checked_size(to, from, size));
    return async_contract_fulfillment::none;
}

}  // namespace cuda
