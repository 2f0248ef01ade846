// Loads with a cache hint, which has no meaning here.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/util_type.cuh>

namespace cub {

enum CacheLoadModifier { LOAD_DEFAULT, LOAD_CA, LOAD_CG, LOAD_CS, LOAD_CV, LOAD_LDG, LOAD_VOLATILE };

template <CacheLoadModifier Modifier, class Iterator>
inline auto ThreadLoad(Iterator it) {
    std::remove_cv_t<std::remove_reference_t<decltype(*it)>> value = *it;
    return value;
}

}  // namespace cub
#include "../../hearth/macros_end.h"
