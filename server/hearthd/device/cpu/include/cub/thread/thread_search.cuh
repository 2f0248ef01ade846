// Binary searches of one thread.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/util_type.cuh>

namespace cub {

template <class Iterator, class Offset, class T>
inline Offset LowerBound(Iterator input, Offset count, T value) {
    Offset first = 0;
    while (count > 0) {
        const Offset half = count >> 1;
        if (input[first + half] < value) {
            first += half + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    return first;
}
template <class Iterator, class Offset, class T>
inline Offset UpperBound(Iterator input, Offset count, T value) {
    Offset first = 0;
    while (count > 0) {
        const Offset half = count >> 1;
        if (value < input[first + half]) {
            count = half;
        } else {
            first += half + 1;
            count -= half + 1;
        }
    }
    return first;
}
// Returns the point at which the diagonal crosses the path that merges `a` and `b`.
template <class A, class B, class Offset, class Coordinate>
inline void MergePathSearch(Offset diagonal, A a, B b, Offset a_count, Offset b_count, Coordinate &crossing) {
    Offset low = diagonal > b_count ? diagonal - b_count : 0, high = diagonal < a_count ? diagonal : a_count;
    while (low < high) {
        const Offset middle = (low + high) >> 1;
        if (a[middle] <= b[diagonal - middle - 1]) low = middle + 1;
        else high = middle;
    }
    crossing.x = low < a_count ? low : a_count;
    crossing.y = diagonal - low;
}

}  // namespace cub
#include "../../hearth/macros_end.h"
