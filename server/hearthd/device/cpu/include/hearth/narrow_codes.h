// Rounding to floating-point formats narrower than float: half, bfloat16 and the eight-bit ones. A format has
// `Exponent` bits of biased exponent above `Mantissa` bits; a code is such a number's bits without its sign.
#pragma once

namespace hearth {

// Returns the code of m * 2^e rounded in the mode `way`, with an unbounded exponent: the caller compares it with the
// format's largest finite code. Rounds once, whatever the source is.
template <int Exponent, int Mantissa>
inline unsigned narrow_code(bool negative, unsigned long long m, int e, Rounding way) {
    if (m == 0) return 0;
    constexpr int lowest = 2 - (1 << (Exponent - 1));  // exponent of the smallest normal number
    const int exponent = 63 - __builtin_clzll(m) + e;
    const int field = exponent < lowest ? lowest : exponent;
    const int dropped = field - Mantissa - e;  // number of low bits of m that do not fit the format
    unsigned long long kept = 0;
    bool half = false, rest = true;
    if (dropped <= 0) {
        kept = m << -dropped;
        rest = false;
    } else if (dropped <= 64) {
        kept = dropped == 64 ? 0 : m >> dropped;
        half = (m >> (dropped - 1) & 1) != 0;
        rest = (m & ((1ull << (dropped - 1)) - 1)) != 0;
    }
    const bool inexact = half || rest;
    if (way == Rounding::rn ? half && (rest || (kept & 1) != 0)
                            : inexact && (way == Rounding::ru ? !negative : way == Rounding::rd && negative)) {
        ++kept;
    }
    return (static_cast<unsigned>(field - lowest) << Mantissa) + static_cast<unsigned>(kept);
}

// Returns the code of a finite double.
template <int Exponent, int Mantissa>
inline unsigned narrow_code(double v, Rounding way) {
    const unsigned long long bits = bits_of<unsigned long long>(v), fraction = bits & ((1ull << 52) - 1);
    const int biased = static_cast<int>(bits >> 52 & 0x7ff);
    const bool negative = bits >> 63 != 0;
    return biased == 0 ? narrow_code<Exponent, Mantissa>(negative, fraction, -1074, way)
                       : narrow_code<Exponent, Mantissa>(negative, fraction | 1ull << 52, biased - 1075, way);
}

// Returns all sixteen bits, for formats with infinities. A NaN becomes CUDA's canonical NaN, 0x7fff.
template <int Exponent, int Mantissa>
inline unsigned short sixteen_bits(bool negative, unsigned code, Rounding way) {
    constexpr unsigned infinity = ((1u << Exponent) - 1) << Mantissa;
    if (code >= infinity) {
        const bool up = way == Rounding::rn || (way == Rounding::ru && !negative) || (way == Rounding::rd && negative);
        code = up ? infinity : infinity - 1;
    }
    return static_cast<unsigned short>(code | unsigned(negative) << 15);
}
template <int Exponent, int Mantissa>
inline unsigned short narrow_bits(double v, Rounding way) {
    if (v != v) return 0x7fff;
    const bool negative = __builtin_signbit(v);
    if (v - v != 0) return static_cast<unsigned short>(((1u << Exponent) - 1) << Mantissa | unsigned(negative) << 15);
    return sixteen_bits<Exponent, Mantissa>(negative, narrow_code<Exponent, Mantissa>(v, way), way);
}
template <int Exponent, int Mantissa, class Integer, std::enable_if_t<std::is_integral_v<Integer>, int> = 0>
inline unsigned short narrow_bits(Integer v, Rounding way) {
    const bool negative = v < 0;
    const unsigned long long magnitude = negative ? 0ull - static_cast<unsigned long long>(v) : static_cast<unsigned long long>(v);
    return sixteen_bits<Exponent, Mantissa>(negative, narrow_code<Exponent, Mantissa>(negative, magnitude, 0, way), way);
}

// Converts to float, rounded to odd, so that the result of a second rounding, to a format narrower by two bits or more,
// is that of rounding once.
inline float float_to_odd(double d) {
    const float nearest = static_cast<float>(d);
    if (static_cast<double>(nearest) == d || d != d || nearest - nearest != 0) return nearest;
    unsigned bits = bits_of<unsigned>(nearest);
    if (__builtin_fabs(static_cast<double>(nearest)) > __builtin_fabs(d)) --bits;
    return bits_of<float>(bits | 1);
}

// The sum of two doubles rounded to odd.
inline double add_to_odd(double a, double b) {
    const double sum = a + b, of_b = sum - a;
    const double error = (a - (sum - of_b)) + (b - of_b);
    if (!(error < 0 || error > 0)) return sum;
    unsigned long long bits = bits_of<unsigned long long>(sum);
    if ((error < 0) != (sum < 0)) --bits;
    return bits_of<double>(bits | 1);
}

}  // namespace hearth
