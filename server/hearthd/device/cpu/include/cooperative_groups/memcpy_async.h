// memcpy_async(): copies that the threads of a group share. A thread's part is complete when memcpy_async() returns.
// wait() synchronises the group, because other threads copy the other parts.
#pragma once
#include "../hearth/macros_begin.h"
#include "../cooperative_groups.h"

namespace cooperative_groups {
namespace details {

template <class Piece>
inline void copy_pieces(unsigned rank, unsigned threads, char *to, const char *from, size_t bytes) {
    for (size_t at = rank * sizeof(Piece); at < bytes; at += threads * sizeof(Piece)) {
        __builtin_memcpy(to + at, from + at, sizeof(Piece));
    }
}

// Copies in the largest pieces of whose size both addresses and `bytes` are multiples.
template <class Group>
inline void copy_bytes(const Group &group, void *to, const void *from, size_t bytes) {
    static_assert(std::is_same_v<Group, thread_block> || tile_size<Group> <= 1024,
                  "memcpy_async() takes a thread_block, a tile or a coalesced group");
    char *const target = static_cast<char *>(to);
    const char *const source = static_cast<const char *>(from);
    const size_t all = reinterpret_cast<size_t>(to) | reinterpret_cast<size_t>(from) | bytes;
    const unsigned rank = group.thread_rank(), threads = group.size();
    if (all % 16 == 0) copy_pieces<uint4>(rank, threads, target, source, bytes);
    else if (all % 8 == 0) copy_pieces<uint64_t>(rank, threads, target, source, bytes);
    else if (all % 4 == 0) copy_pieces<uint32_t>(rank, threads, target, source, bytes);
    else copy_pieces<char>(rank, threads, target, source, bytes);
}

}  // namespace details

// `bytes` is an integer or a cuda::aligned_size_t.
template <class Group, class T, class Size>
inline void memcpy_async(const Group &group, T *to, const T *from, const Size &bytes) {
    details::copy_bytes(group, to, from, static_cast<size_t>(bytes));
}
// Counts of elements: the smaller is copied.
template <class Group, class T, class ToLayout, class FromLayout>
inline void memcpy_async(const Group &group, T *to, const ToLayout &room, const T *from, const FromLayout &count) {
    const size_t most = static_cast<size_t>(room), wanted = static_cast<size_t>(count);
    details::copy_bytes(group, to, from, (wanted < most ? wanted : most) * sizeof(T));
}

template <unsigned Stage, class Group>
inline void wait_prior(const Group &group) { group.sync(); }
template <class Group>
inline void wait(const Group &group) { group.sync(); }

}  // namespace cooperative_groups
#include "../hearth/macros_end.h"
