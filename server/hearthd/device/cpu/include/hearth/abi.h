// The ABI between the runtime library and compiled modules. Both are compiled from this file by the same compiler.
// HEARTH_ABI_HASH (a hash over all of these sources) is compared when a module is loaded, so that they cannot differ.
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

// The block that an operating system thread runs. A block never moves between threads, so this is thread-local.
struct Tls {
    Index block_idx, block_dim, grid_dim;
    unsigned int dynamic_shared_bytes;
    void *grid;          // the Grid of a cooperative launch, else null
    unsigned int spins;  // calls of relax() so far
    uint32_t running;    // rank of the running thread; written in builds for the race check only
};

struct Param {
    uint32_t offset, size;
    uint32_t kind;  // letter: 'i' signed, 'u' unsigned integer, 'b' bool, 'f' floating-point number, '?' another type
};

// Returned by Kernel::run when no thread is left to start.
inline constexpr uint32_t no_thread = ~uint32_t{0};

struct Kernel {
    const char *name;
    const Param *params;
    uint32_t param_count, param_bytes, param_align;
    uint32_t max_threads;
    // Runs the threads of the block from `first` on, in the order of their ranks, until none is left, or until a thread
    // ends that has met others. Returns the rank of that thread.
    uint32_t (*run)(const void *params, Index first);
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

// The inputs and results of the lanes of a warp in an operation, by lane.
struct WarpLanes {
    uint64_t value[32], aux[32], result[32];
};
// Called once for each operation, when the last lane has arrived. Reads `value` and `aux` of the lanes in `mask`, and
// writes their `result`.
using WarpFinish = void (*)(WarpLanes &lanes, uint32_t mask);

// A thread-local variable of the headers (for the race check), which is not shared memory.
struct Unshared {
    const void *begin;
    size_t bytes;
};

enum class Vote : int { none, count, all, any };

}  // namespace hearth

// Has no constructor: with __thread, no access checks whether a constructor must run.
extern "C" {
extern __thread hearth::Tls hearth_tls __attribute__((tls_model("initial-exec")));
// The block's dynamic shared memory. A program's `extern __shared__` arrays are references, and this is the pointer that
// they consist of (source.py).
extern __thread unsigned char *hearth_dynamic_shared __attribute__((tls_model("initial-exec")));
// Meetings of the thread `rank` with others of its block. To be called only through the functions of thread.h, which
// restore the thread's own record.
int hearth_block_sync(uint32_t rank, hearth::Vote vote, int predicate);
uint64_t hearth_warp_collective(
    uint32_t rank, uint32_t mask, uint64_t value, uint64_t aux, hearth::WarpFinish finish);
uint32_t hearth_warp_active(uint32_t rank, const void *site);
void hearth_grid_sync(uint32_t rank);
void hearth_yield(uint32_t rank);
[[noreturn]] void hearth_trap(const char *what, hearth::Index thread);
[[noreturn]] void hearth_assert_failed(
    const char *expression, const char *file, unsigned line, const char *function, hearth::Index thread);

}
