// Functions that the compiler calls before each access to memory in a module that is compiled for the race check
// (-fsanitize=thread), with the names and types of ThreadSanitizer's interface; and wrappers of the C library's
// functions that access memory (-Wl,--wrap).
#include <string.h>

#include <atomic>

#include "racecheck.h"

namespace {

using hearth::race::Kind;

#define HEARTH_SITE __builtin_return_address(0)

inline __attribute__((always_inline)) void hook(Kind kind, const void *place, size_t bytes, const void *site) {
    hearth::race::Checker *const checker = hearth::race::running;
    if (checker != nullptr) checker->access(kind, place, bytes, site);
}

inline void before_load(const volatile void *place, size_t bytes, const void *site) {
    hearth::race::Checker *const checker = hearth::race::running;
    if (checker == nullptr) return;
    checker->acquire(const_cast<const void *>(place));
    checker->access(hearth::race::atomic_read, const_cast<const void *>(place), bytes, site);
}

inline void before_update(const volatile void *place, size_t bytes, int order, bool reads, const void *site) {
    hearth::race::Checker *const checker = hearth::race::running;
    if (checker == nullptr) return;
    if (reads) checker->acquire(const_cast<const void *>(place));
    checker->release(const_cast<const void *>(place), order);
    checker->access(hearth::race::atomic_update, const_cast<const void *>(place), bytes, site);
}

inline void before_swap() {
    if (hearth::race::running != nullptr) hearth::race::running->settle();
}

// A failed compare-and-swap only reads.
inline void after_swap(const volatile void *place, size_t bytes, int order, bool swapped, const void *site) {
    if (swapped) before_update(place, bytes, order, true, site);
    else before_load(place, bytes, site);
}

// Atomic operations on 16 bytes, which not every processor and library has: all of them use this.
std::atomic_flag wide_busy = ATOMIC_FLAG_INIT;

class WideTurn {
public:
    WideTurn() {
        while (wide_busy.test_and_set(std::memory_order_acquire)) {}
    }
    ~WideTurn() { wide_busy.clear(std::memory_order_release); }
};

}  // namespace

using a8 = unsigned char;
using a16 = unsigned short;
using a32 = unsigned int;
using a64 = unsigned long long;
__extension__ using a128 = unsigned __int128;

extern "C" {

void __tsan_init(void) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}
void __tsan_ignore_thread_begin(void) {}
void __tsan_ignore_thread_end(void) {}
void __tsan_atomic_signal_fence(int) {}

void __tsan_atomic_thread_fence(int) {
    if (hearth::race::running != nullptr) hearth::race::running->fence();
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

#define HEARTH_PLAIN(bytes) \
    void __tsan_read##bytes(void *p) { hook(hearth::race::read, p, bytes, HEARTH_SITE); } \
    void __tsan_write##bytes(void *p) { hook(hearth::race::write, p, bytes, HEARTH_SITE); } \
    void __tsan_volatile_read##bytes(void *p) { hook(hearth::race::read, p, bytes, HEARTH_SITE); } \
    void __tsan_volatile_write##bytes(void *p) { hook(hearth::race::write, p, bytes, HEARTH_SITE); }
#define HEARTH_UNALIGNED(bytes) \
    void __tsan_unaligned_read##bytes(void *p) { hook(hearth::race::read, p, bytes, HEARTH_SITE); } \
    void __tsan_unaligned_write##bytes(void *p) { hook(hearth::race::write, p, bytes, HEARTH_SITE); }
HEARTH_PLAIN(1)
HEARTH_PLAIN(2)
HEARTH_PLAIN(4)
HEARTH_PLAIN(8)
HEARTH_PLAIN(16)
HEARTH_UNALIGNED(2)
HEARTH_UNALIGNED(4)
HEARTH_UNALIGNED(8)
HEARTH_UNALIGNED(16)

void __tsan_read_range(void *p, size_t bytes) { hook(hearth::race::read, p, bytes, HEARTH_SITE); }
void __tsan_write_range(void *p, size_t bytes) { hook(hearth::race::write, p, bytes, HEARTH_SITE); }
void __tsan_vptr_read(void **p) { hook(hearth::race::read, p, sizeof *p, HEARTH_SITE); }
void __tsan_vptr_update(void **p, void *) { hook(hearth::race::write, p, sizeof *p, HEARTH_SITE); }

#define HEARTH_COPY(name, function) \
    void *name(void *to, const void *from, size_t bytes) { \
        hook(hearth::race::read, from, bytes, HEARTH_SITE); \
        hook(hearth::race::write, to, bytes, HEARTH_SITE); \
        return function(to, from, bytes); \
    }
#define HEARTH_SET(name) \
    void *name(void *to, int value, size_t bytes) { \
        hook(hearth::race::write, to, bytes, HEARTH_SITE); \
        return memset(to, value, bytes); \
    }
HEARTH_COPY(__tsan_memcpy, memcpy)
HEARTH_COPY(__tsan_memmove, memmove)
HEARTH_SET(__tsan_memset)
HEARTH_COPY(__wrap_memcpy, memcpy)
HEARTH_COPY(__wrap_memmove, memmove)
HEARTH_SET(__wrap_memset)

#define HEARTH_FETCH(bits, name) \
    a##bits __tsan_atomic##bits##_fetch_##name(volatile a##bits *p, a##bits v, int order) { \
        before_update(p, sizeof *p, order, true, HEARTH_SITE); \
        return __atomic_fetch_##name(p, v, __ATOMIC_SEQ_CST); \
    }
#define HEARTH_SWAP(bits, name) \
    int __tsan_atomic##bits##_compare_exchange_##name( \
        volatile a##bits *p, a##bits *compare, a##bits v, int order, int) { \
        before_swap(); \
        const bool done = __atomic_compare_exchange_n(p, compare, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
        after_swap(p, sizeof *p, order, done, HEARTH_SITE); \
        return done; \
    }
#define HEARTH_ATOMIC(bits) \
    a##bits __tsan_atomic##bits##_load(const volatile a##bits *p, int) { \
        before_load(p, sizeof *p, HEARTH_SITE); \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST); \
    } \
    void __tsan_atomic##bits##_store(volatile a##bits *p, a##bits v, int order) { \
        before_update(p, sizeof *p, order, false, HEARTH_SITE); \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST); \
    } \
    a##bits __tsan_atomic##bits##_exchange(volatile a##bits *p, a##bits v, int order) { \
        before_update(p, sizeof *p, order, true, HEARTH_SITE); \
        return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); \
    } \
    HEARTH_FETCH(bits, add) \
    HEARTH_FETCH(bits, sub) \
    HEARTH_FETCH(bits, and) \
    HEARTH_FETCH(bits, or) \
    HEARTH_FETCH(bits, xor) \
    HEARTH_FETCH(bits, nand) \
    HEARTH_SWAP(bits, strong) \
    HEARTH_SWAP(bits, weak) \
    a##bits __tsan_atomic##bits##_compare_exchange_val( \
        volatile a##bits *p, a##bits compare, a##bits v, int order, int) { \
        before_swap(); \
        const bool done = __atomic_compare_exchange_n(p, &compare, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
        after_swap(p, sizeof *p, order, done, HEARTH_SITE); \
        return compare; \
    }
HEARTH_ATOMIC(8)
HEARTH_ATOMIC(16)
HEARTH_ATOMIC(32)
HEARTH_ATOMIC(64)

#define HEARTH_WIDE(name, result) \
    a128 __tsan_atomic128_##name(volatile a128 *p, a128 v, int order) { \
        before_update(p, sizeof *p, order, true, HEARTH_SITE); \
        const WideTurn turn; \
        const a128 before = *p; \
        *p = result; \
        return before; \
    }
HEARTH_WIDE(exchange, v)
HEARTH_WIDE(fetch_add, before + v)
HEARTH_WIDE(fetch_sub, before - v)
HEARTH_WIDE(fetch_and, before & v)
HEARTH_WIDE(fetch_or, before | v)
HEARTH_WIDE(fetch_xor, before ^ v)
HEARTH_WIDE(fetch_nand, ~(before & v))

a128 __tsan_atomic128_load(const volatile a128 *p, int) {
    before_load(p, sizeof *p, HEARTH_SITE);
    const WideTurn turn;
    return *p;
}
void __tsan_atomic128_store(volatile a128 *p, a128 v, int order) {
    before_update(p, sizeof *p, order, false, HEARTH_SITE);
    const WideTurn turn;
    *p = v;
}
a128 __tsan_atomic128_compare_exchange_val(volatile a128 *p, a128 compare, a128 v, int order, int) {
    a128 before;
    before_swap();
    {
        const WideTurn turn;
        before = *p;
        if (before == compare) *p = v;
    }
    after_swap(p, sizeof *p, order, before == compare, HEARTH_SITE);
    return before;
}
#define HEARTH_WIDE_SWAP(name) \
    int __tsan_atomic128_compare_exchange_##name(volatile a128 *p, a128 *compare, a128 v, int order, int) { \
        const a128 wanted = *compare; \
        before_swap(); \
        { \
            const WideTurn turn; \
            *compare = *p; \
            if (*compare == wanted) *p = v; \
        } \
        after_swap(p, sizeof *p, order, *compare == wanted, HEARTH_SITE); \
        return *compare == wanted; \
    }
HEARTH_WIDE_SWAP(strong)
HEARTH_WIDE_SWAP(weak)

}
