// cuda::std's bit operations before C++20, and byteswap before C++23.
#pragma once

#include <cstring>
#include <limits>
#include <type_traits>

namespace cuda {
namespace std {

#if __cplusplus < 202002L

enum class endian { little = __ORDER_LITTLE_ENDIAN__, big = __ORDER_BIG_ENDIAN__, native = __BYTE_ORDER__ };

template <class To, class From>
constexpr To bit_cast(const From &from) noexcept {
    static_assert(sizeof(To) == sizeof(From), "bit_cast needs types of one size");
    return __builtin_bit_cast(To, from);
}

#define HEARTH_UNSIGNED(T) \
    template <class T, ::std::enable_if_t<::std::is_unsigned_v<T> && !::std::is_same_v<T, bool>, int> = 0>
HEARTH_UNSIGNED(T)
constexpr int countl_zero(T v) noexcept {
    constexpr int digits = ::std::numeric_limits<T>::digits;
    return v == 0 ? digits : __builtin_clzll(v) - (64 - digits);
}
HEARTH_UNSIGNED(T)
constexpr int countr_zero(T v) noexcept { return v == 0 ? ::std::numeric_limits<T>::digits : __builtin_ctzll(v); }
HEARTH_UNSIGNED(T)
constexpr int countl_one(T v) noexcept { return countl_zero(static_cast<T>(~v)); }
HEARTH_UNSIGNED(T)
constexpr int countr_one(T v) noexcept { return countr_zero(static_cast<T>(~v)); }
HEARTH_UNSIGNED(T)
constexpr int popcount(T v) noexcept { return __builtin_popcountll(v); }
HEARTH_UNSIGNED(T)
constexpr bool has_single_bit(T v) noexcept { return v != 0 && (v & (v - 1)) == 0; }
HEARTH_UNSIGNED(T)
constexpr int bit_width(T v) noexcept { return ::std::numeric_limits<T>::digits - countl_zero(v); }
HEARTH_UNSIGNED(T)
constexpr T bit_floor(T v) noexcept { return v == 0 ? T(0) : static_cast<T>(T(1) << (bit_width(v) - 1)); }
HEARTH_UNSIGNED(T)
constexpr T bit_ceil(T v) noexcept { return v <= 1 ? T(1) : static_cast<T>(T(1) << bit_width(static_cast<T>(v - 1))); }
HEARTH_UNSIGNED(T)
constexpr T rotl(T v, int by) noexcept {
    constexpr int digits = ::std::numeric_limits<T>::digits;
    const int left = (by % digits + digits) % digits;
    return left == 0 ? v : static_cast<T>(static_cast<T>(v << left) | static_cast<T>(v >> (digits - left)));
}
HEARTH_UNSIGNED(T)
constexpr T rotr(T v, int by) noexcept {
    constexpr int digits = ::std::numeric_limits<T>::digits;
    return rotl(v, digits - by % digits);
}
#undef HEARTH_UNSIGNED

#endif

#ifndef __cpp_lib_byteswap
template <class T, ::std::enable_if_t<::std::is_integral_v<T>, int> = 0>
constexpr T byteswap(T v) noexcept {
    auto left = static_cast<::std::make_unsigned_t<T>>(v);
    ::std::make_unsigned_t<T> result = 0;
    for (unsigned i = 0; i < sizeof(T); ++i) {
        result = static_cast<::std::make_unsigned_t<T>>(static_cast<unsigned long long>(result) << 8 | (left & 0xff));
        left = static_cast<::std::make_unsigned_t<T>>(static_cast<unsigned long long>(left) >> 8);
    }
    return static_cast<T>(result);
}
#endif

}  // namespace std
}  // namespace cuda
