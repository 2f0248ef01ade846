// Floating-point numbers of 8 and 16 bits: widened to float, and rounded from float to the nearest number, ties to
// even. As in ml_dtypes, a value that is too large becomes infinite, or a NaN if the type has no infinities.
#pragma once
#include <stdint.h>
#include <string.h>

#include <type_traits>

namespace hearth {

inline uint32_t bits_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

inline float float_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

struct Bf16 {
    uint16_t bits;
    operator float() const { return float_of(uint32_t{bits} << 16); }
    Bf16() = default;
    explicit Bf16(float f) {
        const uint32_t wide = bits_of(f);
        bits = f != f ? static_cast<uint16_t>(wide >> 16 | 0x40)
                      : static_cast<uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
    }
};

// 1 sign bit, 7 - M bits of exponent, M of mantissa. `finite`: no infinities, and one NaN of each sign (OCP's E4M3).
template <int M, bool finite>
struct Float8 {
    static constexpr int bias = (1 << (6 - M)) - 1;
    static constexpr uint32_t nan = finite ? 0x7f : 0x7f & ~((1u << (M - 1)) - 1);
    static constexpr uint32_t largest = finite ? 0x7e : 0x7f & ~((1u << M) - 1);  // for e5m2: infinity

    uint8_t bits;
    operator float() const {
        const uint32_t sign = uint32_t{bits & 0x80u} << 24, rest = bits & 0x7f;
        if (finite ? rest == nan : rest > largest) return float_of(sign | 0x7fc00000);
        if (!finite && rest == largest) return float_of(sign | 0x7f800000);
        // Read as a float, then scaled by the difference of both biases. This is exact, also for subnormal numbers,
        // which are normal in a float.
        return float_of(sign | rest << (23 - M)) * float_of(uint32_t{254 - bias} << 23);
    }
    Float8() = default;
    explicit Float8(float f) {
        const uint32_t wide = bits_of(f), sign = wide >> 24 & 0x80, size = wide & 0x7fffffff;
        uint32_t code;
        if (size > 0x7f800000) {
            code = nan;
        } else if (size >= uint32_t{128 - bias} << 23) {  // normal in this type, too
            code = ((size + (1u << (22 - M)) - 1 + (size >> (23 - M) & 1)) >> (23 - M)) - ((127u - bias) << M);
            if (code > largest) code = finite ? nan : largest;
        } else {  // in units of the smallest number, rounded by adding 2^23
            const float units = float_of(size) * float_of(uint32_t{126 + bias + M} << 23) + 8388608.0f;
            code = bits_of(units) & 0xff;
        }
        bits = static_cast<uint8_t>(sign | code);
    }
};
using E4m3fn = Float8<3, true>;
using E5m2 = Float8<2, false>;

}  // namespace hearth
