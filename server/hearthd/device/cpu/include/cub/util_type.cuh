// Types that CUB's interfaces mention.
#pragma once
#include "../hearth/macros_begin.h"
#include <cub/config.cuh>

namespace cub {

struct NullType {
    template <class T>
    NullType &operator=(const T &) {
        return *this;
    }
    bool operator==(const NullType &) const { return true; }
    bool operator!=(const NullType &) const { return false; }
};

template <class KeyT, class ValueT>
struct KeyValuePair {
    using Key = KeyT;
    using Value = ValueT;
    Key key;
    Value value;
    KeyValuePair() {}
    KeyValuePair(const Key &key_, const Value &value_) : key(key_), value(value_) {}
    bool operator!=(const KeyValuePair &other) const { return value != other.value || key != other.key; }
};

template <class T>
struct Uninitialized {
    alignas(T) unsigned char storage[sizeof(T)];
    T &Alias() { return reinterpret_cast<T &>(*this); }
};

template <int N>
struct PowerOfTwo {
    enum { VALUE = (N & (N - 1)) == 0 };
};
template <int N, int Current = N, int Count = 0>
struct Log2 {  // rounded up
    enum { VALUE = Log2<N, (Current >> 1), Count + 1>::VALUE };
};
template <int N, int Count>
struct Log2<N, 0, Count> {
    enum { VALUE = (1 << (Count - 1)) < N ? Count : Count - 1 };
};

}  // namespace cub
#include "../hearth/macros_end.h"
