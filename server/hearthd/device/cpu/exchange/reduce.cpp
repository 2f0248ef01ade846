// The arithmetic of reductions for one dtype, whose C++ type is HEARTH_DTYPE. Each dtype has a separate library,
// compiled at its first use: a compiler takes seconds for the vector code of all of them, and a group mostly uses one
// or two.
#include "reduce.h"

#include <string.h>

#include <type_traits>

#include "narrow.h"

namespace hearth {
namespace {

constexpr size_t tile = 512;

// The type in which a mean is divided: any number of ranks is a value of it.
template <class A>
using Divisor = std::conditional_t<std::is_integral_v<A>, std::conditional_t<std::is_signed_v<A>, int64_t, uint64_t>, A>;

template <class A, class T>
void convert(A *to, const T *from, size_t n) {
    for (size_t i = 0; i < n; ++i) to[i] = static_cast<A>(from[i]);
}

template <class A>
void combine(A *total, const A *in, size_t n, uint32_t op) {
    switch (op) {
        case least:  // a NaN stays, as in numpy.minimum
            for (size_t i = 0; i < n; ++i) total[i] = total[i] < in[i] || total[i] != total[i] ? total[i] : in[i];
            return;
        case greatest:
            for (size_t i = 0; i < n; ++i) total[i] = total[i] > in[i] || total[i] != total[i] ? total[i] : in[i];
            return;
        case product:
            for (size_t i = 0; i < n; ++i) total[i] = static_cast<A>(total[i] * in[i]);
            return;
        default:
            for (size_t i = 0; i < n; ++i) total[i] = static_cast<A>(total[i] + in[i]);
    }
}

// T is the stored type, A the type of the computation. As in NCCL, the mean of integers is their sum, which wraps,
// divided and truncated towards zero.
template <class T, class A>
void reduce_as(const void *const *inputs, unsigned count, unsigned char *output, size_t begin, size_t end, uint32_t op) {
    for (size_t at = begin; at < end; at += tile) {
        const size_t n = end - at < tile ? end - at : tile;
        A total[tile];
        convert(total, static_cast<const T *>(inputs[0]) + at, n);
        for (unsigned r = 1; r < count; ++r) {
            const T *const in = static_cast<const T *>(inputs[r]) + at;
            if constexpr (std::is_same_v<T, A>) {
                combine(total, in, n, op);
            } else {
                A wide[tile];
                convert(wide, in, n);
                combine(total, wide, n, op);
            }
        }
        if (op == mean) {
            for (size_t i = 0; i < n; ++i) total[i] = static_cast<A>(total[i] / static_cast<Divisor<A>>(count));
        }
        unsigned char *const out = output + at * sizeof(T);  // it need not be aligned
        if constexpr (std::is_same_v<T, A>) {
            memcpy(out, total, n * sizeof(T));
        } else {
            T rounded[tile];
            convert(rounded, total, n);
            memcpy(out, rounded, n * sizeof(T));
        }
    }
}

using Stored = HEARTH_DTYPE;
using Computed =
    std::conditional_t<std::is_integral_v<Stored> || std::is_same_v<Stored, double>, Stored, float>;

}  // namespace
}  // namespace hearth

extern "C" void hearth_reduce(const void *const *inputs, unsigned count, void *output, size_t begin, size_t end,
                              uint32_t op) {
    using namespace hearth;
    reduce_as<Stored, Computed>(inputs, count, static_cast<unsigned char *>(output), begin, end, op);
}

extern "C" void hearth_scale(void *elements, size_t n, const void *factor) {
    using namespace hearth;
    auto *const all = static_cast<Stored *>(elements);
    Stored stored;
    memcpy(&stored, factor, sizeof stored);
    const auto by = static_cast<Computed>(stored);
    for (size_t i = 0; i < n; ++i) {
        all[i] = static_cast<Stored>(static_cast<Computed>(static_cast<Computed>(all[i]) * by));
    }
}
