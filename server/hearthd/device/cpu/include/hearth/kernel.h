// Derives from a kernel's C++ signature the layout of its parameter block, and functions that take such a block and run
// the threads of a thread block.
#pragma once

namespace hearth {

template <class T>
constexpr uint32_t kind_of() {
    if constexpr (std::is_enum<T>::value)
        return kind_of<typename std::underlying_type<T>::type>();
    else if constexpr (std::is_integral<T>::value && sizeof(T) <= 8)
        return std::is_same<T, bool>::value ? 'b' : std::is_signed<T>::value ? 'i' : 'u';
    else
        return std::is_floating_point<T>::value ? 'f' : '?';
}

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
        constexpr uint32_t kinds[] = {kind_of<A>()..., 0};
        Table table;
        for (uint32_t i = 0; i < count; ++i) {
            const uint32_t offset = (table.bytes + aligns[i] - 1) / aligns[i] * aligns[i];
            table.entries[i] = Param{offset, sizes[i], kinds[i]};
            table.bytes = offset + sizes[i];
            if (aligns[i] > table.align) table.align = aligns[i];
        }
        return table;
    }
    static constexpr Table table = compute();
};

template <auto F>
struct Trampoline {
    static_assert(sizeof(F) == 0, "a kernel is a __global__ function that returns void");
};

template <class... A, void (*F)(A...)>
struct Trampoline<F> {
    using Parameters = Layout<A...>;

    // Passes the arguments by value: in registers or on this stack, the kernel's stores do not reach them.
    static inline __attribute__((always_inline)) uint32_t threads(Index first, A... arguments) {
        const Index dim = hearth_tls.block_dim;
        if ((first.x | first.y | first.z) == 0) {  // the block begins
            blockIdx = uint3_of(hearth_tls.block_idx);
            blockDim = uint3_of(dim);
            gridDim = uint3_of(hearth_tls.grid_dim);
        }
#ifdef HEARTH_RACECHECK
        const Unshared record[] = {{&threadIdx, sizeof threadIdx}, {&blockIdx, sizeof blockIdx},
                                   {&blockDim, sizeof blockDim},   {&gridDim, sizeof gridDim},
                                   {&self, sizeof self}};
        hearth_race_enter(record, sizeof record / sizeof *record, &finish_sync);
#endif
        uint32_t rank = first.x + dim.x * (first.y + dim.y * first.z);
        for (; first.z < dim.z; ++first.z, first.y = 0) {
            for (; first.y < dim.y; ++first.y, first.x = 0) {
                for (; first.x < dim.x; ++first.x, ++rank) {
                    threadIdx = uint3_of(first);
                    self.rank = rank;
                    self.met = 0;
                    race_thread(rank);
                    F(arguments...);
                    if (self.met != 0) return rank;
                }
            }
        }
        return no_thread;
    }
    template <size_t... I>
    static inline __attribute__((always_inline)) uint32_t unpack(
        Index first, const unsigned char *p, std::index_sequence<I...>) {
        return threads(first, *reinterpret_cast<const std::remove_cv_t<A> *>(p + Parameters::table.entries[I].offset)...);
    }
    static uint32_t run(const void *params, Index first) {
        return unpack(first, static_cast<const unsigned char *>(params), std::index_sequence_for<A...>());
    }
};

template <auto F>
constexpr Kernel describe_kernel(const char *name, uint32_t max_threads) {
    using P = typename Trampoline<F>::Parameters;
    return Kernel{name, P::table.entries, P::count, P::table.bytes, P::table.align, max_threads, &Trampoline<F>::run};
}

template <class... Bounds>
constexpr uint32_t launch_bounds(uint32_t max_threads = 1024, Bounds...) {
    return max_threads;
}

}  // namespace hearth
