// Included ahead of every kernel source: what CUDA's compilers supply without being asked. Precompiled, so its size
// costs a kernel's compile next to nothing.
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
#include <limits>
#include <type_traits>
#include <utility>

#include "abi.h"
#include "thread.h"
#include "vector_types.h"
#include "builtins.h"
#include "kernel.h"
#include "math_functions.h"
#include "intrinsics.h"
#include "relaxed_begin.h"
#include "atomics.h"
#include "relaxed_end.h"
#include "warp.h"
