// libcu++'s own integer functions: cuda::ceil_div, round_up, round_down, ilog2, ilog10. Arguments are not negative,
// divisors positive.
#pragma once

#include <type_traits>

namespace hearth {

template <class T, bool Enumeration = std::is_enum_v<T>>
struct Number {
    using type = T;
};
template <class T>
struct Number<T, true> {
    using type = std::underlying_type_t<T>;
};
template <class A, class B>
using CommonNumber = std::common_type_t<typename Number<A>::type, typename Number<B>::type>;
template <class T>
inline constexpr bool whole = std::is_integral_v<T> || std::is_enum_v<T>;

}  // namespace hearth

namespace cuda {

#define HEARTH_WHOLE(A, B) template <class A, class B, ::std::enable_if_t<hearth::whole<A> && hearth::whole<B>, int> = 0>
HEARTH_WHOLE(A, B)
constexpr hearth::CommonNumber<A, B> ceil_div(A a, B b) noexcept {
    using R = hearth::CommonNumber<A, B>;
    const R dividend = static_cast<R>(a), divisor = static_cast<R>(b);
    return static_cast<R>(dividend / divisor + (dividend % divisor != 0 ? 1 : 0));
}
HEARTH_WHOLE(A, B)
constexpr hearth::CommonNumber<A, B> round_up(A a, B b) noexcept {
    using R = hearth::CommonNumber<A, B>;
    return static_cast<R>(ceil_div(a, b) * static_cast<R>(b));
}
HEARTH_WHOLE(A, B)
constexpr hearth::CommonNumber<A, B> round_down(A a, B b) noexcept {
    using R = hearth::CommonNumber<A, B>;
    return static_cast<R>(static_cast<R>(a) - static_cast<R>(a) % static_cast<R>(b));
}
#undef HEARTH_WHOLE
template <class T, ::std::enable_if_t<::std::is_integral_v<T>, int> = 0>
constexpr int ilog2(T v) noexcept { return 63 - __builtin_clzll(static_cast<::std::make_unsigned_t<T>>(v)); }
template <class T, ::std::enable_if_t<::std::is_integral_v<T>, int> = 0>
constexpr int ilog10(T v) noexcept {
    int digits = 0;
    for (auto left = static_cast<::std::make_unsigned_t<T>>(v); left >= 10; left = static_cast<decltype(left)>(left / 10)) ++digits;
    return digits;
}

}  // namespace cuda
