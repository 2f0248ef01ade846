// Qualifiers, and the built-in functions that concern a thread or its block.
#pragma once

// Each macro expands to itself, so that #ifdef finds it, and it remains after preprocessing, when source.py rewrites
// it.
#define __global__ __global__
#define __device__ __device__
#define __host__ __host__
#define __shared__ __shared__
#define __constant__ __constant__
#define __managed__ __managed__
#define __launch_bounds__ __launch_bounds__
#define __cluster_dims__ __cluster_dims__
#define __maxnreg__ __maxnreg__
#define __noinline__ __noinline__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __inline_hint__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __device_builtin__
#define __cudart_builtin__
#define CUDARTAPI
#define __nv_pure__

#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 6
#define __CUDACC_VER_BUILD__ 0
#define CUDA_VERSION 12060
#define CUDART_VERSION 12060
#define __CUDA_ARCH_LIST__ __CUDA_ARCH__
#define __HEARTH_CPU__ 1

#undef clock
#define clock() hearth::clock_cycles<clock_t>()

namespace hearth {

// Initialisers of pointers and references to the block's dynamic shared memory (source.py).
inline constexpr struct {
    template <class T>
    operator T *() const { return reinterpret_cast<T *>(hearth_dynamic_shared); }
} dynamic_array;
inline constexpr struct {
    template <class T>
    operator T &() const { return *reinterpret_cast<T *>(hearth_dynamic_shared); }
} dynamic_object;

template <class T>
inline T clock_cycles() {
#if defined(__x86_64__)
    return static_cast<T>(__builtin_ia32_rdtsc());
#else
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<T>(now.tv_sec * 1000000000ll + now.tv_nsec);
#endif
}

}  // namespace hearth

static constexpr int warpSize = 32;

inline void __syncthreads() { hearth::block_sync(hearth::Vote::none, 0); }
inline int __syncthreads_count(int predicate) { return hearth::block_sync(hearth::Vote::count, predicate); }
inline int __syncthreads_and(int predicate) { return hearth::block_sync(hearth::Vote::all, predicate); }
inline int __syncthreads_or(int predicate) { return hearth::block_sync(hearth::Vote::any, predicate); }

// A fence may be part of a loop that waits for another thread.
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST), hearth::relax(); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST), hearth::relax(); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST), hearth::relax(); }

inline long long clock64() { return hearth::clock_cycles<long long>(); }
inline void __nanosleep(unsigned nanoseconds) {
    hearth::yield();
    const timespec pause{0, static_cast<long>(nanoseconds < 1000000u ? nanoseconds : 1000000u)};
    nanosleep(&pause, nullptr);
}
[[noreturn]] inline void __trap() { hearth::trap("__trap()"); }
extern "C" inline void cudaGraphSetConditional(unsigned long long handle, unsigned int value) {
    *reinterpret_cast<volatile unsigned int *>(handle) = value;
}
inline void __brkpt() { hearth::trap("__brkpt()"); }
[[noreturn]] inline void __nv_unreachable() { __builtin_unreachable(); }
#define __builtin_assume(condition) ((condition) ? void(0) : __builtin_unreachable())
#define __assume(condition) __builtin_assume(condition)

template <class T>
inline T __ldg(const T *p) { return *p; }
template <class T>
inline T __ldcg(const T *p) { return *p; }
template <class T>
inline T __ldca(const T *p) { return *p; }
template <class T>
inline T __ldcs(const T *p) { return *p; }
template <class T>
inline T __ldlu(const T *p) { return *p; }
// Read again each time. Uses a compiler barrier, because a class cannot be copied from a volatile object.
template <class T>
inline T __ldcv(const T *p) {
    __asm__ __volatile__("" ::: "memory");
    return *p;
}
template <class T>
inline void __stcg(T *p, std::common_type_t<T> v) { *p = v; }
template <class T>
inline void __stcs(T *p, std::common_type_t<T> v) { *p = v; }
template <class T>
inline void __stwb(T *p, std::common_type_t<T> v) { *p = v; }
template <class T>
inline void __stwt(T *p, std::common_type_t<T> v) { *p = v; }
inline void __prof_trigger(int) {}

// Programmatic dependent launch (cuda_device_runtime_api.h): a kernel starts after the one before it has ended.
inline void cudaGridDependencySynchronize() {}
inline void cudaTriggerProgrammaticLaunchCompletion() {}
