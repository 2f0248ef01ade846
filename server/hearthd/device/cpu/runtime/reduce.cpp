#include "reduce.h"

#include <string.h>

#include <algorithm>
#include <type_traits>

#include "narrow.h"

namespace hearth {
namespace {

template <class A>
A combine(A a, A b, uint32_t op) {
    switch (op) {
        case least: return a < b || a != a ? a : b;  // a NaN stays, as in numpy.minimum
        case greatest: return a > b || a != a ? a : b;
        case product: return a * b;
        default: return a + b;
    }
}

// T is stored, A is what is computed in.
template <class T, class A, uint32_t op>
void reduce_part(const void *const *inputs, unsigned count, unsigned char *output, size_t begin, size_t end) {
    constexpr size_t tile = 512;
    A total[tile];
    for (size_t at = begin; at < end; at += tile) {
        const size_t n = std::min(tile, end - at);
        const T *in = static_cast<const T *>(inputs[0]) + at;
        for (size_t i = 0; i < n; ++i) total[i] = static_cast<A>(in[i]);
        for (unsigned r = 1; r < count; ++r) {
            in = static_cast<const T *>(inputs[r]) + at;
            for (size_t i = 0; i < n; ++i) total[i] = combine<A>(total[i], static_cast<A>(in[i]), op);
        }
        if (op == mean) {
            // Signed even where it is computed unsigned (to wrap): an integer mean is cut towards zero.
            using S = std::conditional_t<std::is_signed_v<T> && std::is_integral_v<T>, std::make_signed_t<
                      std::conditional_t<std::is_integral_v<A>, A, int>>, A>;
            for (size_t i = 0; i < n; ++i) total[i] = static_cast<A>(static_cast<S>(total[i]) / static_cast<S>(count));
        }
        unsigned char *const out = output + at * sizeof(T);  // it need not be aligned
        if constexpr (std::is_same_v<T, A>) {
            memcpy(out, total, n * sizeof(T));
        } else {
            T rounded[tile];
            for (size_t i = 0; i < n; ++i) rounded[i] = static_cast<T>(total[i]);
            memcpy(out, rounded, n * sizeof(T));
        }
    }
}

template <class T, class A>
void reduce_as(const void *const *inputs, unsigned count, void *output, size_t begin, size_t end, uint32_t op) {
    auto *const out = static_cast<unsigned char *>(output);
    switch (op) {
        case sum: return reduce_part<T, A, sum>(inputs, count, out, begin, end);
        case mean: return reduce_part<T, A, mean>(inputs, count, out, begin, end);
        case least: return reduce_part<T, A, least>(inputs, count, out, begin, end);
        case greatest: return reduce_part<T, A, greatest>(inputs, count, out, begin, end);
        default: return reduce_part<T, A, product>(inputs, count, out, begin, end);
    }
}

// Integers are summed and multiplied unsigned, which wraps, but ordered by their own sign.
template <class T>
void reduce_integer(const void *const *inputs, unsigned count, void *output, size_t begin, size_t end, uint32_t op) {
    if (op == least || op == greatest) return reduce_as<T, T>(inputs, count, output, begin, end, op);
    reduce_as<T, uint64_t>(inputs, count, output, begin, end, op);
}

}  // namespace

const Type types[] = {
    {1, reduce_integer<int8_t>},       {2, reduce_integer<int16_t>},      {4, reduce_integer<int32_t>},
    {8, reduce_integer<int64_t>},      {1, reduce_integer<uint8_t>},      {2, reduce_integer<uint16_t>},
    {4, reduce_integer<uint32_t>},     {8, reduce_integer<uint64_t>},     {2, reduce_as<_Float16, float>},
    {2, reduce_as<Bf16, float>},       {4, reduce_as<float, float>},      {8, reduce_as<double, double>},
    {1, reduce_as<E4m3fn, float>},     {1, reduce_as<E5m2, float>},
};
const size_t type_count = sizeof types / sizeof types[0];

}  // namespace hearth
