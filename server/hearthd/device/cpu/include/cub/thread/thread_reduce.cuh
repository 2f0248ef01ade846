// Reductions over a thread's own array.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/thread/thread_operators.cuh>

namespace cub {

template <class Input, class Op, class T = std::remove_cv_t<std::remove_reference_t<decltype(std::declval<Input>()[0])>>>
inline T ThreadReduce(const Input &input, Op op) {
    constexpr int count = static_cast<int>(sizeof(Input) / sizeof(input[0]));
    T total = input[0];
    for (int i = 1; i < count; ++i) total = op(total, input[i]);
    return total;
}
template <class Input, class Op, class Prefix>
inline Prefix ThreadReduce(const Input &input, Op op, Prefix prefix) {
    constexpr int count = static_cast<int>(sizeof(Input) / sizeof(input[0]));
    for (int i = 0; i < count; ++i) prefix = op(prefix, input[i]);
    return prefix;
}

namespace internal {
using cub::ThreadReduce;
}

}  // namespace cub
#include "../../hearth/macros_end.h"
