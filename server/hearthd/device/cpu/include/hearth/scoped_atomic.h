// cuda::atomic and cuda::atomic_ref, https://nvidia.github.io/cccl/libcudacxx/extended_api/synchronization_primitives.html.
// All scopes are implemented by the widest one. Operations by which a program may be spinning (a load, an operation
// that changes nothing) let other threads of the block run.
#pragma once

#include <cstddef>
#include <type_traits>

namespace cuda {

enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block, thread_scope_thread = 10 };

namespace std {

enum class memory_order : int { relaxed, consume, acquire, release, acq_rel, seq_cst };
inline constexpr memory_order memory_order_relaxed = memory_order::relaxed;
inline constexpr memory_order memory_order_consume = memory_order::consume;
inline constexpr memory_order memory_order_acquire = memory_order::acquire;
inline constexpr memory_order memory_order_release = memory_order::release;
inline constexpr memory_order memory_order_acq_rel = memory_order::acq_rel;
inline constexpr memory_order memory_order_seq_cst = memory_order::seq_cst;

}  // namespace std

using std::memory_order;
using std::memory_order_acq_rel;
using std::memory_order_acquire;
using std::memory_order_consume;
using std::memory_order_relaxed;
using std::memory_order_release;
using std::memory_order_seq_cst;

}  // namespace cuda

namespace hearth {

template <size_t Bytes>
struct Storage {
    static_assert(Bytes == 1 || Bytes == 2 || Bytes == 4 || Bytes == 8,
                  "HEARTH-UNSUPPORTED: atomic objects of a size other than 1, 2, 4 or 8 bytes");
    using type = unsigned char;
};
template <> struct Storage<2> { using type = unsigned short; };
template <> struct Storage<4> { using type = unsigned int; };
template <> struct Storage<8> { using type = unsigned long long; };

// Atomic access to an object of any trivially copyable type, by its bits.
template <class T>
struct AtomicAccess {
    static_assert(std::is_trivially_copyable_v<T>, "an atomic object has a trivially copyable type");
    using Bits = typename Storage<sizeof(T)>::type;
    using Order = cuda::std::memory_order;
    static constexpr bool pointer = std::is_pointer_v<T>;
    static constexpr bool integer = std::is_integral_v<T> && !std::is_same_v<std::remove_cv_t<T>, bool>;
    static constexpr bool arithmetic = integer || std::is_floating_point_v<T>;
    // The argument type of fetch_add: the type itself, or a distance between pointers.
    using Difference = std::conditional_t<pointer, ptrdiff_t, T>;

    static Bits *place(T *p) { return reinterpret_cast<Bits *>(p); }
    static Bits bits_of_value(const T &v) {
        Bits bits;
        __builtin_memcpy(&bits, &v, sizeof bits);
        return bits;
    }
    static T value_of(Bits bits) {
        alignas(T) unsigned char object[sizeof(T)];
        __builtin_memcpy(object, &bits, sizeof bits);
        return *reinterpret_cast<T *>(object);
    }

    static T load(T *p, Order order) {
        relax();
        Bits bits;
        if (order == Order::relaxed) bits = __atomic_load_n(place(p), __ATOMIC_RELAXED);
        else if (order == Order::seq_cst) bits = __atomic_load_n(place(p), __ATOMIC_SEQ_CST);
        else bits = __atomic_load_n(place(p), __ATOMIC_ACQUIRE);
        return value_of(bits);
    }
    static void store(T *p, const T &v, Order order) {
        const Bits bits = bits_of_value(v);
        if (order == Order::relaxed) __atomic_store_n(place(p), bits, __ATOMIC_RELAXED);
        else if (order == Order::release) __atomic_store_n(place(p), bits, __ATOMIC_RELEASE);
        else __atomic_store_n(place(p), bits, __ATOMIC_SEQ_CST);
    }
    static T exchange(T *p, const T &v) {
        const Bits wanted = bits_of_value(v), old = __atomic_exchange_n(place(p), wanted, __ATOMIC_SEQ_CST);
        if (old == wanted) relax();
        return value_of(old);
    }
    static bool compare_exchange(T *p, T &expected, const T &v) {
        Bits seen = bits_of_value(expected);
        const Bits wanted = bits_of_value(v);
        const bool same = seen == wanted;
        const bool done = __atomic_compare_exchange_n(place(p), &seen, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        if (same || !done) relax();
        if (!done) expected = value_of(seen);
        return done;
    }
    // Returns the value before `fn` changed it.
    template <class Fn>
    static T update(T *p, Fn fn) {
        Bits before = __atomic_load_n(place(p), __ATOMIC_RELAXED);
        for (;;) {
            const Bits after = bits_of_value(static_cast<T>(fn(value_of(before))));
            if (__atomic_compare_exchange_n(place(p), &before, after, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
                if (before == after) relax();
                return value_of(before);
            }
        }
    }
    static T add(T *p, Difference d) {
        if constexpr (integer) {
            if (d == 0) relax();
            return static_cast<T>(__atomic_fetch_add(place(p), static_cast<Bits>(d), __ATOMIC_SEQ_CST));
        } else {
            return update(p, [d](T old) { return old + d; });
        }
    }
    static T subtract(T *p, Difference d) {
        if constexpr (integer) return add(p, static_cast<T>(Bits(0) - static_cast<Bits>(d)));
        else return update(p, [d](T old) { return old - d; });
    }
    static void wait(T *p, const T &old, Order order) {
        while (bits_of_value(load(p, order)) == bits_of_value(old)) relax();
    }
};

// The members that cuda::atomic, cuda::atomic_ref and cuda::std::atomic share. `Derived` has place(), a T *.
template <class Derived, class T>
class AtomicMembers {
    using Access = AtomicAccess<T>;
    using Order = cuda::std::memory_order;
    static constexpr Order strongest = Order::seq_cst;
    T *at() const { return static_cast<const Derived *>(this)->place(); }

public:
    using value_type = T;
    using difference_type = typename Access::Difference;
    static constexpr bool is_always_lock_free = true;
    bool is_lock_free() const noexcept { return true; }

    T load(Order order = strongest) const noexcept { return Access::load(at(), order); }
    operator T() const noexcept { return load(); }
    void store(T v, Order order = strongest) const noexcept { Access::store(at(), v, order); }
    T exchange(T v, Order = strongest) const noexcept { return Access::exchange(at(), v); }
    bool compare_exchange_weak(T &expected, T v, Order = strongest) const noexcept {
        return Access::compare_exchange(at(), expected, v);
    }
    bool compare_exchange_weak(T &expected, T v, Order, Order) const noexcept {
        return Access::compare_exchange(at(), expected, v);
    }
    bool compare_exchange_strong(T &expected, T v, Order = strongest) const noexcept {
        return Access::compare_exchange(at(), expected, v);
    }
    bool compare_exchange_strong(T &expected, T v, Order, Order) const noexcept {
        return Access::compare_exchange(at(), expected, v);
    }
    void wait(T old, Order order = strongest) const noexcept { Access::wait(at(), old, order); }
    void notify_one() const noexcept {}
    void notify_all() const noexcept {}

    T fetch_add(difference_type d, Order = strongest) const noexcept {
        static_assert(Access::arithmetic || Access::pointer, "fetch_add needs a number or a pointer");
        return Access::add(at(), d);
    }
    T fetch_sub(difference_type d, Order = strongest) const noexcept {
        static_assert(Access::arithmetic || Access::pointer, "fetch_sub needs a number or a pointer");
        return Access::subtract(at(), d);
    }
    T fetch_min(T v, Order = strongest) const noexcept {
        static_assert(Access::arithmetic, "fetch_min needs a number");
        return Access::update(at(), [v](T old) { return v < old ? v : old; });
    }
    T fetch_max(T v, Order = strongest) const noexcept {
        static_assert(Access::arithmetic, "fetch_max needs a number");
        return Access::update(at(), [v](T old) { return old < v ? v : old; });
    }
    T fetch_and(T v, Order = strongest) const noexcept {
        static_assert(Access::integer, "fetch_and needs an integer");
        return Access::update(at(), [v](T old) { return old & v; });
    }
    T fetch_or(T v, Order = strongest) const noexcept {
        static_assert(Access::integer, "fetch_or needs an integer");
        return Access::update(at(), [v](T old) { return old | v; });
    }
    T fetch_xor(T v, Order = strongest) const noexcept {
        static_assert(Access::integer, "fetch_xor needs an integer");
        return Access::update(at(), [v](T old) { return old ^ v; });
    }
    T operator++() const noexcept { return fetch_add(1) + 1; }
    T operator--() const noexcept { return fetch_sub(1) - 1; }
    T operator++(int) const noexcept { return fetch_add(1); }
    T operator--(int) const noexcept { return fetch_sub(1); }
    T operator+=(difference_type d) const noexcept { return fetch_add(d) + d; }
    T operator-=(difference_type d) const noexcept { return fetch_sub(d) - d; }
    T operator&=(T v) const noexcept { return fetch_and(v) & v; }
    T operator|=(T v) const noexcept { return fetch_or(v) | v; }
    T operator^=(T v) const noexcept { return fetch_xor(v) ^ v; }
};

// An object that is accessed atomically only. Trivially constructed, so that it can lie in shared memory.
template <class T>
class AtomicObject : public AtomicMembers<AtomicObject<T>, T> {
public:
    AtomicObject() noexcept = default;
    constexpr AtomicObject(T v) noexcept : value_(v) {}
    AtomicObject(const AtomicObject &) = delete;
    AtomicObject &operator=(const AtomicObject &) = delete;
    T operator=(T v) noexcept {
        this->store(v);
        return v;
    }
    T *place() const { return const_cast<T *>(&value_); }

private:
    alignas(sizeof(T)) mutable T value_;
};

// A view of an object that lies elsewhere.
template <class T>
class AtomicView : public AtomicMembers<AtomicView<T>, T> {
public:
    static constexpr size_t required_alignment = sizeof(T);
    explicit AtomicView(T &object) noexcept : place_(&object) {}
    AtomicView(const AtomicView &) noexcept = default;
    AtomicView &operator=(const AtomicView &) = delete;
    T operator=(T v) const noexcept {
        this->store(v);
        return v;
    }
    T *place() const { return place_; }

private:
    T *place_;
};

inline void atomic_fence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    relax();
}

}  // namespace hearth

namespace cuda {

template <class T, thread_scope Scope = thread_scope_system>
struct atomic : hearth::AtomicObject<T> {
    atomic() noexcept = default;
    constexpr atomic(T v) noexcept : hearth::AtomicObject<T>(v) {}
    using hearth::AtomicObject<T>::operator=;
};
template <class T, thread_scope Scope = thread_scope_system>
struct atomic_ref : hearth::AtomicView<T> {
    explicit atomic_ref(T &object) noexcept : hearth::AtomicView<T>(object) {}
    atomic_ref(const atomic_ref &) noexcept = default;
    using hearth::AtomicView<T>::operator=;
};
inline void atomic_thread_fence(std::memory_order, thread_scope = thread_scope_system) { hearth::atomic_fence(); }
inline void atomic_signal_fence(std::memory_order) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

namespace std {

template <class T>
struct atomic : hearth::AtomicObject<T> {
    atomic() noexcept = default;
    constexpr atomic(T v) noexcept : hearth::AtomicObject<T>(v) {}
    using hearth::AtomicObject<T>::operator=;
};
template <class T>
struct atomic_ref : hearth::AtomicView<T> {
    explicit atomic_ref(T &object) noexcept : hearth::AtomicView<T>(object) {}
    atomic_ref(const atomic_ref &) noexcept = default;
    using hearth::AtomicView<T>::operator=;
};
inline void atomic_thread_fence(memory_order) { hearth::atomic_fence(); }
inline void atomic_signal_fence(memory_order) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

class atomic_flag {
public:
    atomic_flag() noexcept = default;
    constexpr atomic_flag(bool set) noexcept : set_(set) {}
    atomic_flag(const atomic_flag &) = delete;
    atomic_flag &operator=(const atomic_flag &) = delete;
    bool test(memory_order order = memory_order_seq_cst) const noexcept { return set_.load(order); }
    bool test_and_set(memory_order = memory_order_seq_cst) noexcept { return set_.exchange(true); }
    void clear(memory_order order = memory_order_seq_cst) noexcept { set_.store(false, order); }
    void wait(bool old, memory_order order = memory_order_seq_cst) const noexcept { set_.wait(old, order); }
    void notify_one() noexcept {}
    void notify_all() noexcept {}

private:
    hearth::AtomicObject<bool> set_;
};
#define ATOMIC_FLAG_INIT {false}
#define ATOMIC_VAR_INIT(value) {value}

// The functions of C, for every type with these members.
#define HEARTH_ATOMIC_FUNCTION(name, member, order) \
    template <class A, class V> \
    inline auto name(A *object, V v) -> typename A::value_type { return object->member(v); } \
    template <class A, class V> \
    inline auto name##_explicit(A *object, V v, memory_order order) -> typename A::value_type { return object->member(v, order); }
HEARTH_ATOMIC_FUNCTION(atomic_exchange, exchange, order)
HEARTH_ATOMIC_FUNCTION(atomic_fetch_add, fetch_add, order)
HEARTH_ATOMIC_FUNCTION(atomic_fetch_sub, fetch_sub, order)
HEARTH_ATOMIC_FUNCTION(atomic_fetch_and, fetch_and, order)
HEARTH_ATOMIC_FUNCTION(atomic_fetch_or, fetch_or, order)
HEARTH_ATOMIC_FUNCTION(atomic_fetch_xor, fetch_xor, order)
#undef HEARTH_ATOMIC_FUNCTION
template <class A>
inline auto atomic_load(const A *object) -> typename A::value_type { return object->load(); }
template <class A>
inline auto atomic_load_explicit(const A *object, memory_order order) -> typename A::value_type { return object->load(order); }
template <class A, class V>
inline void atomic_store(A *object, V v) { object->store(v); }
template <class A, class V>
inline void atomic_store_explicit(A *object, V v, memory_order order) { object->store(v, order); }
template <class A, class V>
inline bool atomic_compare_exchange_strong(A *object, typename A::value_type *expected, V v) {
    return object->compare_exchange_strong(*expected, v);
}
template <class A, class V>
inline bool atomic_compare_exchange_weak(A *object, typename A::value_type *expected, V v) {
    return object->compare_exchange_weak(*expected, v);
}

#define HEARTH_ATOMIC_NAME(name, T) using atomic_##name = atomic<T>;
HEARTH_ATOMIC_NAME(bool, bool)
HEARTH_ATOMIC_NAME(char, char)
HEARTH_ATOMIC_NAME(schar, signed char)
HEARTH_ATOMIC_NAME(uchar, unsigned char)
HEARTH_ATOMIC_NAME(short, short)
HEARTH_ATOMIC_NAME(ushort, unsigned short)
HEARTH_ATOMIC_NAME(int, int)
HEARTH_ATOMIC_NAME(uint, unsigned)
HEARTH_ATOMIC_NAME(long, long)
HEARTH_ATOMIC_NAME(ulong, unsigned long)
HEARTH_ATOMIC_NAME(llong, long long)
HEARTH_ATOMIC_NAME(ullong, unsigned long long)
HEARTH_ATOMIC_NAME(int32_t, ::int32_t)
HEARTH_ATOMIC_NAME(uint32_t, ::uint32_t)
HEARTH_ATOMIC_NAME(int64_t, ::int64_t)
HEARTH_ATOMIC_NAME(uint64_t, ::uint64_t)
HEARTH_ATOMIC_NAME(size_t, ::size_t)
HEARTH_ATOMIC_NAME(ptrdiff_t, ::ptrdiff_t)
#undef HEARTH_ATOMIC_NAME

}  // namespace std

}  // namespace cuda
