// Stores with a cache hint, which has no meaning here.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/util_type.cuh>

namespace cub {

enum CacheStoreModifier { STORE_DEFAULT, STORE_WB, STORE_CG, STORE_CS, STORE_WT, STORE_VOLATILE };

template <CacheStoreModifier Modifier, class Iterator, class T>
inline void ThreadStore(Iterator it, T value) {
    *it = value;
}

}  // namespace cub
#include "../../hearth/macros_end.h"
