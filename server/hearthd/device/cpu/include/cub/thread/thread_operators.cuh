// Function objects for reductions and scans; includes those that later releases replaced by cuda::std's.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/util_type.cuh>
#include <cuda/functional>

namespace cub {

struct Equality {
    template <class A, class B>
    bool operator()(const A &a, const B &b) const { return a == b; }
};
struct Inequality {
    template <class A, class B>
    bool operator()(const A &a, const B &b) const { return a != b; }
};
template <class Op>
struct InequalityWrapper {
    Op op;
    InequalityWrapper(Op op_) : op(op_) {}
    template <class A, class B>
    bool operator()(const A &a, const B &b) { return !op(a, b); }
};
struct Sum {
    template <class A, class B>
    auto operator()(const A &a, const B &b) const { return a + b; }
};
struct Difference {
    template <class A, class B>
    auto operator()(const A &a, const B &b) const { return a - b; }
};
struct Division {
    template <class A, class B>
    auto operator()(const A &a, const B &b) const { return a / b; }
};
struct Max {
    template <class A, class B>
    std::common_type_t<A, B> operator()(const A &a, const B &b) const { return b > a ? b : a; }
};
struct Min {
    template <class A, class B>
    std::common_type_t<A, B> operator()(const A &a, const B &b) const { return b < a ? b : a; }
};
// The pair with the greater (smaller) value; of equal ones, that with the smaller key.
struct ArgMax {
    template <class T, class K>
    KeyValuePair<K, T> operator()(const KeyValuePair<K, T> &a, const KeyValuePair<K, T> &b) const {
        return b.value > a.value || (a.value == b.value && b.key < a.key) ? b : a;
    }
};
struct ArgMin {
    template <class T, class K>
    KeyValuePair<K, T> operator()(const KeyValuePair<K, T> &a, const KeyValuePair<K, T> &b) const {
        return b.value < a.value || (a.value == b.value && b.key < a.key) ? b : a;
    }
};
template <class B>
struct CastOp {
    template <class A>
    B operator()(const A &a) const { return static_cast<B>(a); }
};
template <class Op>
struct SwizzleScanOp {
    Op op;
    SwizzleScanOp(Op op_) : op(op_) {}
    template <class T>
    T operator()(const T &a, const T &b) { return op(b, a); }
};
// Pairs of a segment's head flag and a value: the sum restarts at each head.
template <class Op>
struct ReduceBySegmentOp {
    Op op;
    ReduceBySegmentOp() {}
    ReduceBySegmentOp(Op op_) : op(op_) {}
    template <class Pair>
    Pair operator()(const Pair &a, const Pair &b) {
        Pair result;
        result.key = a.key + b.key;
        result.value = b.key ? b.value : op(a.value, b.value);
        return result;
    }
};
template <class Op>
struct ReduceByKeyOp {
    Op op;
    ReduceByKeyOp() {}
    ReduceByKeyOp(Op op_) : op(op_) {}
    template <class Pair>
    Pair operator()(const Pair &a, const Pair &b) {
        Pair result = b;
        if (a.key == b.key) result.value = op(a.value, b.value);
        return result;
    }
};

}  // namespace cub
#include "../../hearth/macros_end.h"
