// nvcuda::experimental::pipeline, the predecessor of cuda::pipeline.
#pragma once
#include "hearth/macros_begin.h"
#include <cuda_awbarrier.h>
#include <cuda_pipeline_primitives.h>

namespace nvcuda {
namespace experimental {

template <size_t N, class T>
inline auto segment(T *p) -> T (*)[N] {
    return reinterpret_cast<T(*)[N]>(p);
}

class pipeline {
public:
    pipeline() = default;
    pipeline(const pipeline &) = delete;
    pipeline &operator=(const pipeline &) = delete;

    size_t commit() { return batches_++; }
    void commit_and_wait() { commit(); }
    void wait(size_t) {}
    template <unsigned N>
    void wait_prior() {}
    template <class Barrier>
    void arrive_on(Barrier &) {}

private:
    size_t batches_ = 0;
};

template <class T>
inline void memcpy_async(T &to, const T &from, pipeline &) {
    to = from;
}
// Elements beyond the end of the source become zero.
template <class T, size_t To, size_t From>
inline void memcpy_async(T (*to)[To], const T (*from)[From], pipeline &) {
    static_assert(sizeof(*to) == 4 || sizeof(*to) == 8 || sizeof(*to) == 16, "the size of a copy is 4, 8 or 16");
    static_assert(From <= To, "the source is no larger than the destination");
    for (size_t i = 0; i < To; ++i) (*to)[i] = i < From ? (*from)[i] : T();
}

}  // namespace experimental
}  // namespace nvcuda
#include "hearth/macros_end.h"
