// The arithmetic of reductions: combines several inputs into one output, in the order of the inputs.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace hearth {

// In the order of libraries.py's OPS.
enum Op : uint32_t { sum, mean, least, greatest, product, premultiplied_sum, ops };

// Computes elements [begin, end) of the output from the same elements of all inputs. The inputs are aligned; the output
// need not be. They do not overlap.
using Reduce = void (*)(const void *const *inputs, unsigned count, void *output, size_t begin, size_t end, uint32_t op);

// Multiplies n elements by the factor, and rounds each product once. The elements are aligned; the factor need not be.
using Scale = void (*)(void *elements, size_t n, const void *factor);

}  // namespace hearth
