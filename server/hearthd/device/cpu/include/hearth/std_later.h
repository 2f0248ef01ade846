// Small things of later standards that libcu++ has from C++17 on: traits, comparisons of integers of unlike signs,
// midpoint, identity. Each is defined only if the standard library lacks it.
#pragma once

#include <cstddef>
#include <limits>
#include <type_traits>
#include <utility>

namespace cuda {
namespace std {

#if __cplusplus < 202002L

template <class T>
struct remove_cvref {
    using type = ::std::remove_cv_t<::std::remove_reference_t<T>>;
};
template <class T>
using remove_cvref_t = typename remove_cvref<T>::type;
template <class T>
struct type_identity {
    using type = T;
};
template <class T>
using type_identity_t = typename type_identity<T>::type;
template <class T> struct is_bounded_array : ::std::false_type {};
template <class T, size_t N> struct is_bounded_array<T[N]> : ::std::true_type {};
template <class T> struct is_unbounded_array : ::std::false_type {};
template <class T> struct is_unbounded_array<T[]> : ::std::true_type {};
template <class T>
inline constexpr bool is_bounded_array_v = is_bounded_array<T>::value;
template <class T>
inline constexpr bool is_unbounded_array_v = is_unbounded_array<T>::value;
constexpr bool is_constant_evaluated() noexcept { return __builtin_is_constant_evaluated(); }

template <class A, class B>
constexpr bool cmp_less(A a, B b) noexcept {
    if constexpr (::std::is_signed_v<A> == ::std::is_signed_v<B>) return a < b;
    else if constexpr (::std::is_signed_v<A>) return a < 0 || static_cast<::std::make_unsigned_t<A>>(a) < b;
    else return b >= 0 && a < static_cast<::std::make_unsigned_t<B>>(b);
}
template <class A, class B>
constexpr bool cmp_equal(A a, B b) noexcept { return !cmp_less(a, b) && !cmp_less(b, a); }
template <class A, class B>
constexpr bool cmp_not_equal(A a, B b) noexcept { return !cmp_equal(a, b); }
template <class A, class B>
constexpr bool cmp_greater(A a, B b) noexcept { return cmp_less(b, a); }
template <class A, class B>
constexpr bool cmp_less_equal(A a, B b) noexcept { return !cmp_less(b, a); }
template <class A, class B>
constexpr bool cmp_greater_equal(A a, B b) noexcept { return !cmp_less(a, b); }
template <class To, class From>
constexpr bool in_range(From v) noexcept {
    return cmp_greater_equal(v, ::std::numeric_limits<To>::min()) && cmp_less_equal(v, ::std::numeric_limits<To>::max());
}

// Rounded towards the first of two integers.
template <class T, ::std::enable_if_t<::std::is_integral_v<T>, int> = 0>
constexpr T midpoint(T a, T b) noexcept {
    using U = ::std::make_unsigned_t<T>;
    return a > b ? static_cast<T>(a - static_cast<T>(static_cast<U>(static_cast<U>(a) - static_cast<U>(b)) / 2))
                 : static_cast<T>(a + static_cast<T>(static_cast<U>(static_cast<U>(b) - static_cast<U>(a)) / 2));
}
template <class T, ::std::enable_if_t<::std::is_floating_point_v<T>, int> = 0>
constexpr T midpoint(T a, T b) noexcept {
    constexpr T half = ::std::numeric_limits<T>::max() / 2;
    return a <= half && a >= -half && b <= half && b >= -half ? (a + b) / 2 : a / 2 + b / 2;
}
template <class T>
constexpr T *midpoint(T *a, T *b) noexcept { return a + (b - a) / 2; }

struct identity {
    using is_transparent = void;
    template <class T>
    constexpr T &&operator()(T &&v) const noexcept { return ::std::forward<T>(v); }
};

template <class C>
constexpr auto ssize(const C &c) -> ::std::common_type_t<ptrdiff_t, ::std::make_signed_t<decltype(c.size())>> {
    return static_cast<::std::common_type_t<ptrdiff_t, ::std::make_signed_t<decltype(c.size())>>>(c.size());
}
template <class T, ptrdiff_t N>
constexpr ptrdiff_t ssize(const T (&)[N]) noexcept { return N; }

#endif

#ifndef __cpp_lib_to_underlying
template <class E>
constexpr ::std::underlying_type_t<E> to_underlying(E e) noexcept { return static_cast<::std::underlying_type_t<E>>(e); }
#endif
#ifndef __cpp_lib_unreachable
[[noreturn]] inline void unreachable() { __builtin_unreachable(); }
#endif

}  // namespace std
}  // namespace cuda
