// From a kernel's C++ signature to what a launch needs: the layout of its parameter block, and functions that take
// such a block and call the kernel.
#pragma once

namespace hearth {

template <class... A>
struct Layout {
    static constexpr uint32_t count = sizeof...(A);
    struct Table {
        Param entries[count == 0 ? 1 : count] = {};
        uint32_t bytes = 0, align = 1;
    };
    // C's rules for the members of a struct, which are also cuFuncGetParamInfo's.
    static constexpr Table compute() {
        constexpr uint32_t sizes[] = {uint32_t(sizeof(A))..., 0}, aligns[] = {uint32_t(alignof(A))..., 1};
        Table table;
        for (uint32_t i = 0; i < count; ++i) {
            const uint32_t offset = (table.bytes + aligns[i] - 1) / aligns[i] * aligns[i];
            table.entries[i] = Param{offset, sizes[i]};
            table.bytes = offset + sizes[i];
            if (aligns[i] > table.align) table.align = aligns[i];
        }
        return table;
    }
    static constexpr Table table = compute();
};

template <auto F, bool NeedsTls>
struct Trampoline {
    static_assert(sizeof(F) == 0, "a kernel is a __global__ function that returns void");
};

template <class... A, void (*F)(Here, A...), bool NeedsTls>
struct Trampoline<F, NeedsTls> {
    using Parameters = Layout<A...>;

    // By value: what lies in registers or on this stack cannot be changed by the kernel's stores, so the loop can be
    // vectorised.
    static inline __attribute__((always_inline)) void block(A... arguments) {
        const Tls &tls = hearth_tls;
        Here here{{0, 0, 0}, tls.block_idx, tls.block_dim, tls.grid_dim};
        const Index dim = tls.block_dim;
        for (unsigned z = 0; z < dim.z; ++z) {
            for (unsigned y = 0; y < dim.y; ++y) {
                for (unsigned x = 0; x < dim.x; ++x) {
                    here.thread_idx = Index{x, y, z};
                    if constexpr (NeedsTls) hearth_tls.thread_idx = here.thread_idx;
                    F(here, arguments...);
                }
            }
        }
    }
    template <size_t... I>
    static inline __attribute__((always_inline)) void block_of(const unsigned char *p, std::index_sequence<I...>) {
        block(*reinterpret_cast<const std::remove_cv_t<A> *>(p + Parameters::table.entries[I].offset)...);
    }
    template <size_t... I>
    static inline __attribute__((always_inline)) void thread_of(const unsigned char *p, std::index_sequence<I...>) {
        const Tls &tls = hearth_tls;
        F(Here{tls.thread_idx, tls.block_idx, tls.block_dim, tls.grid_dim},
          *reinterpret_cast<const std::remove_cv_t<A> *>(p + Parameters::table.entries[I].offset)...);
    }
    static void run_block(const void *params) {
        block_of(static_cast<const unsigned char *>(params), std::index_sequence_for<A...>());
    }
    static void run_thread(const void *params) {
        thread_of(static_cast<const unsigned char *>(params), std::index_sequence_for<A...>());
    }
};

template <auto F, bool UsesFibers, bool NeedsTls>
constexpr Kernel describe_kernel(const char *name, uint32_t max_threads, bool prints, const char *shared_in) {
    using T = Trampoline<F, NeedsTls>;
    using P = typename T::Parameters;
    Kernel kernel{name,       P::table.entries, P::count,  P::table.bytes, P::table.align, max_threads,
                  UsesFibers, prints,           shared_in, nullptr,        nullptr};
    // Only the form that is used, so that a kernel's body is compiled once.
    if constexpr (UsesFibers) kernel.run_thread = &T::run_thread;
    else kernel.run_block = &T::run_block;
    return kernel;
}

template <class... Bounds>
constexpr uint32_t launch_bounds(uint32_t max_threads = 1024, Bounds...) {
    return max_threads;
}

}  // namespace hearth
