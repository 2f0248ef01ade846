// Blocked, striped and warp-striped arrangements: the index, among all items, of the i-th item of a thread.
#pragma once
#include "../hearth/macros_begin.h"
#include <cub/thread/thread_load.cuh>
#include <cub/thread/thread_store.cuh>

namespace cub {
namespace hearth_details {

template <int Items>
inline int blocked(int thread, int i) {
    return thread * Items + i;
}
template <int Threads>
inline int striped(int thread, int i) {
    return i * Threads + thread;
}
template <int Items>
inline int warp_striped(int thread, int i) {
    return thread / 32 * 32 * Items + i * 32 + thread % 32;
}

template <class T, int Items, class Iterator, class Place>
inline void load(int thread, Iterator from, T (&items)[Items], int end, Place place) {
    for (int i = 0; i < Items; ++i) {
        const int at = place(thread, i);
        if (at < end) items[i] = from[at];
    }
}
template <class T, int Items, class Iterator, class Place>
inline void store(int thread, Iterator to, T (&items)[Items], int end, Place place) {
    for (int i = 0; i < Items; ++i) {
        const int at = place(thread, i);
        if (at < end) to[at] = items[i];
    }
}

constexpr int no_end = 0x7fffffff;

}  // namespace hearth_details

#define HEARTH_DIRECT(Name, template_head, place) \
    template <template_head class T, int ITEMS, class Iterator> \
    inline void LoadDirect##Name(int thread, Iterator from, T (&items)[ITEMS]) { \
        hearth_details::load(thread, from, items, hearth_details::no_end, place); \
    } \
    template <template_head class T, int ITEMS, class Iterator> \
    inline void LoadDirect##Name(int thread, Iterator from, T (&items)[ITEMS], int end) { \
        hearth_details::load(thread, from, items, end, place); \
    } \
    template <template_head class T, class Default, int ITEMS, class Iterator> \
    inline void LoadDirect##Name(int thread, Iterator from, T (&items)[ITEMS], int end, Default outside) { \
        for (int i = 0; i < ITEMS; ++i) items[i] = outside; \
        hearth_details::load(thread, from, items, end, place); \
    } \
    template <template_head class T, int ITEMS, class Iterator> \
    inline void StoreDirect##Name(int thread, Iterator to, T (&items)[ITEMS]) { \
        hearth_details::store(thread, to, items, hearth_details::no_end, place); \
    } \
    template <template_head class T, int ITEMS, class Iterator> \
    inline void StoreDirect##Name(int thread, Iterator to, T (&items)[ITEMS], int end) { \
        hearth_details::store(thread, to, items, end, place); \
    }
#define HEARTH_NOTHING
#define HEARTH_THREADS int BLOCK_THREADS,
HEARTH_DIRECT(Blocked, HEARTH_NOTHING, hearth_details::blocked<ITEMS>)
HEARTH_DIRECT(BlockedVectorized, HEARTH_NOTHING, hearth_details::blocked<ITEMS>)
HEARTH_DIRECT(Striped, HEARTH_THREADS, hearth_details::striped<BLOCK_THREADS>)
HEARTH_DIRECT(WarpStriped, HEARTH_NOTHING, hearth_details::warp_striped<ITEMS>)
#undef HEARTH_DIRECT
#undef HEARTH_NOTHING
#undef HEARTH_THREADS

}  // namespace cub
#include "../hearth/macros_end.h"
