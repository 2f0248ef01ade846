// Scans over a thread's own array.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/thread/thread_operators.cuh>

namespace cub {
namespace internal {

template <int Length, class T, class Op>
inline T ThreadScanExclusive(T *input, T *output, Op op, T prefix, bool apply_prefix = true) {
    T running = input[0];
    if (apply_prefix) running = op(prefix, running);
    output[0] = prefix;
    for (int i = 1; i < Length; ++i) {
        const T next = op(running, input[i]);
        output[i] = running;
        running = next;
    }
    return running;
}
template <int Length, class T, class Op>
inline T ThreadScanExclusive(T (&input)[Length], T (&output)[Length], Op op, T prefix, bool apply_prefix = true) {
    return ThreadScanExclusive<Length>(static_cast<T *>(input), static_cast<T *>(output), op, prefix, apply_prefix);
}
template <int Length, class T, class Op>
inline T ThreadScanInclusive(T *input, T *output, Op op, T prefix, bool apply_prefix = true) {
    T running = input[0];
    if (apply_prefix) running = op(prefix, running);
    output[0] = running;
    for (int i = 1; i < Length; ++i) output[i] = running = op(running, input[i]);
    return running;
}
template <int Length, class T, class Op>
inline T ThreadScanInclusive(T (&input)[Length], T (&output)[Length], Op op, T prefix, bool apply_prefix = true) {
    return ThreadScanInclusive<Length>(static_cast<T *>(input), static_cast<T *>(output), op, prefix, apply_prefix);
}
template <int Length, class T, class Op>
inline T ThreadScanInclusive(T *input, T *output, Op op) {
    return ThreadScanInclusive<Length>(input, output, op, input[0], false);
}
template <int Length, class T, class Op>
inline T ThreadScanInclusive(T (&input)[Length], T (&output)[Length], Op op) {
    return ThreadScanInclusive<Length>(static_cast<T *>(input), static_cast<T *>(output), op, input[0], false);
}

}  // namespace internal
}  // namespace cub
#include "../../hearth/macros_end.h"
