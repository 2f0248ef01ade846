// CUB's block- and warp-wide collectives on the CPU, by their documentation (https://nvidia.github.io/cccl/cub/). All
// algorithms that a template parameter selects give the same results here.
#pragma once
#include "../hearth/macros_begin.h"
#include <hearth/collective.h>
#if defined(__GLIBCXX__)
#include <bits/stl_function.h>  // cuda::std::plus and similar types, without the rest of <functional>
#else
#include <functional>
#endif

#include <cuda/std/type_traits>
#include <cuda/std/utility>

#define CUB_VERSION 300000
#define CUB_MAJOR_VERSION 3
#define CUB_MINOR_VERSION 0
#define CUB_SUBMINOR_VERSION 0
#define CUB_PTX_ARCH __CUDA_ARCH__
#define CUB_LOG_WARP_THREADS(unused) (5)
#define CUB_WARP_THREADS(unused) (32)
#define CUB_PTX_LOG_WARP_THREADS 5
#define CUB_PTX_WARP_THREADS 32
#define CUB_PTX_SMEM_BANKS 32
#define CUB_MAX(a, b) (((b) > (a)) ? (b) : (a))
#define CUB_MIN(a, b) (((b) < (a)) ? (b) : (a))
#define CUB_NAMESPACE_BEGIN namespace cub {
#define CUB_NAMESPACE_END }

namespace cub {
namespace hearth_details {

// The TempStorage of a collective, which needs no shared memory.
struct Room {
    int unused[4];
};

struct Plus {
    template <class A, class B>
    auto operator()(const A &a, const B &b) const {
        return a + b;
    }
};

template <class T>
struct always_false : std::false_type {};

}  // namespace hearth_details
}  // namespace cub
#include "../hearth/macros_end.h"
