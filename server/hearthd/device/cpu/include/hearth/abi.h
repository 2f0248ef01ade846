// What the runtime library and every compiled module agree on. Both are compiled from this file by the same compiler;
// HEARTH_ABI_HASH (a hash over all of these sources) is compared when a module is loaded, so they cannot drift apart.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifndef HEARTH_ABI_HASH
#define HEARTH_ABI_HASH 0
#endif

namespace hearth {

inline constexpr uint64_t abi_hash = HEARTH_ABI_HASH;

struct Index {
    unsigned int x, y, z;
};

// One per operating system thread. Fibers of a block never move between threads, so this may be thread-local.
struct Tls {
    Index thread_idx, block_idx, block_dim, grid_dim;
    unsigned char *dynamic_shared;
    void *block;  // the running Block while its threads are fibers, else null
    void *grid;   // the Grid of a cooperative launch, else null
    unsigned int dynamic_shared_bytes;
    unsigned int thread_rank;  // linear thread index within the block; kept only while threads are fibers
};

struct Param {
    uint32_t offset, size;
};

struct Kernel {
    const char *name;
    const Param *params;
    uint32_t param_count, param_bytes, param_align;
    uint32_t max_threads;
    uint32_t uses_fibers;
    uint32_t prints;
    const char *shared_in;                   // functions with static shared memory that it may reach, blank-separated
    void (*run_block)(const void *params);   // every thread of a block, one after the other
    void (*run_thread)(const void *params);  // the current thread; called on its fiber
};

struct Global {
    const char *name;
    void *address;
    uint64_t size;
};

struct Module {
    uint64_t abi;
    const Kernel *kernels;
    uint64_t kernel_count;
    const Global *globals;
    uint64_t global_count;
};

// One lane's part in a warp-wide operation; lives on that lane's stack until all participants have come.
struct WarpOp {
    uint64_t value, aux, result;
};
// Run once, by the last lane to arrive: reads ops[lane].value/aux and writes .result of every lane in `mask`.
using WarpFinish = void (*)(WarpOp *const *ops, uint32_t mask);

enum class Vote : int { none, count, all, any };

}  // namespace hearth

extern "C" {
extern thread_local hearth::Tls hearth_tls __attribute__((tls_model("initial-exec")));
int hearth_block_sync(hearth::Vote vote, int predicate);
void hearth_warp_collective(uint32_t mask, hearth::WarpOp *op, hearth::WarpFinish finish);
uint32_t hearth_warp_active(const void *site);
void hearth_grid_sync(void);
void hearth_yield(void);
[[noreturn]] void hearth_trap(const char *what);
[[noreturn]] void hearth_assert_failed(const char *expression, const char *file, unsigned line, const char *function);

}
