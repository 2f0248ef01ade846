// The C form of asynchronous copies, complete when the call returns:
// https://docs.nvidia.com/cuda/cuda-c-programming-guide/ (Pipeline Primitives Interface).
#pragma once
#include "hearth/macros_begin.h"
#include <cuda_awbarrier_primitives.h>
#include <hearth/copy_async.h>

inline void __pipeline_memcpy_async(void *to, const void *from, size_t size_and_align, size_t zfill = 0) {
    if ((size_and_align != 4 && size_and_align != 8 && size_and_align != 16) || zfill > size_and_align) {
        hearth::trap("__pipeline_memcpy_async: the size is not 4, 8 or 16, or less than the bytes to be zero");
    }
    if (!hearth::is_aligned(to, from, 0, size_and_align)) {
        hearth::trap("__pipeline_memcpy_async: a pointer is not a multiple of the size");
    }
    __builtin_memcpy(to, from, size_and_align - zfill);
    __builtin_memset(static_cast<char *>(to) + (size_and_align - zfill), 0, zfill);
}
inline void __pipeline_commit() {}
inline void __pipeline_wait_prior(size_t) {}
// Does nothing: it would add one expected arrival to the barrier, and remove it because the copies are complete.
inline void __pipeline_arrive_on(__mbarrier_t *) {}
#include "hearth/macros_end.h"
