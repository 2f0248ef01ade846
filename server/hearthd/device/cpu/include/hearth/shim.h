// Included before every kernel source: the names that CUDA's compilers define without an include. Precompiled, so that
// its size adds little to the compile of a kernel.
#pragma once

#include <assert.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <initializer_list>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>

#include "abi.h"
#include "thread.h"
#include "builtins.h"
#include "kernel.h"
#include "math_functions.h"
#include "intrinsics.h"
#include "simd.h"
#include "spaces.h"
#include "atomics.h"
#include "warp.h"
#include "runtime_names.h"

// A function, not a macro: a program may have a member by that name. In the program's namespace it hides the C library's.
#undef clock
inline namespace hearth_program {
inline clock_t clock() { return hearth::clock_cycles<clock_t>(); }
}  // namespace hearth_program

#undef CUDA_VERSION  // cuda.h defines it
