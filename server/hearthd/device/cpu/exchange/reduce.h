// The arithmetic of reductions: several inputs into one output, in the order of the inputs.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace hearth {

// In the order of libraries.py's OPS.
enum Op : uint32_t { sum, mean, least, greatest, product, premultiplied_sum, ops };

// Elements [begin, end) of the output from the same elements of all inputs, which are aligned; the output need not be.
// They do not overlap.
using Reduce = void (*)(const void *const *inputs, unsigned count, void *output, size_t begin, size_t end, uint32_t op);

// Multiplies n elements, which are aligned, by the factor, which need not be, and rounds each product once.
using Scale = void (*)(void *elements, size_t n, const void *factor);

}  // namespace hearth
