// A launch: copies the parameter block to the place where kernels read it, then runs the blocks on the pool.
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>

#include <memory>

#include "block.h"
#include "divide.h"
#include "faults.h"
#include "grid.h"
#include "pool.h"
#include "racecheck.h"
#include "record.h"

__thread hearth::Tls hearth_tls = {};
__thread unsigned char *hearth_dynamic_shared = nullptr;

namespace hearth {
namespace {

struct Launch {
    const Kernel *kernel;
    const void *params;
    Index grid, block;
    unsigned shared_bytes;
    Grid *together;  // the barrier of a cooperative launch, else null
    Slot *slot;      // its slot in the crash record, else null
    race::Findings *races;
};

// State that a thread that runs blocks keeps between launches; freed when the thread ends.
struct Worker {
    HandlerStack handler_stack;
    std::unique_ptr<Block> block{new Block};
    unsigned char *shared = nullptr;
    size_t shared_capacity = 0;

    ~Worker() { free(shared); }

    unsigned char *dynamic_shared(size_t bytes) {
        if (bytes > shared_capacity || shared == nullptr) {
            free(shared);
            shared_capacity = (bytes + 4096 + 1023) & ~size_t{1023};
            shared = static_cast<unsigned char *>(aligned_alloc(1024, shared_capacity));
            if (shared == nullptr) abort();
            memset(shared, 0, shared_capacity);
        }
        return shared;
    }
};

thread_local Worker worker;

void run_one(void *context, uint64_t index) {
    const Launch &launch = *static_cast<const Launch *>(context);
    Tls &tls = hearth_tls;
    tls.grid_dim = launch.grid;
    tls.block_dim = launch.block;
    tls.block_idx.x = static_cast<unsigned>(index % launch.grid.x);
    tls.block_idx.y = static_cast<unsigned>(index / launch.grid.x % launch.grid.y);
    tls.block_idx.z = static_cast<unsigned>(index / launch.grid.x / launch.grid.y);
    Worker &mine = worker;
    hearth_dynamic_shared = mine.dynamic_shared(launch.shared_bytes);
    tls.dynamic_shared_bytes = launch.shared_bytes;
    tls.grid = launch.together;
    running_slot = launch.slot;
    in_kernel = true;
    running_block = mine.block.get();
    race::findings = launch.races;
    running_block->run(*launch.kernel, launch.params);
    in_kernel = false;
    if (race::running != nullptr) race::running->leave();
    if (launch.together != nullptr) launch.together->leave();
    running_slot = nullptr;
}

}  // namespace
}  // namespace hearth

extern "C" {

uint64_t hearth_abi(void) { return HEARTH_ABI_HASH; }

void hearth_launch(const hearth::Kernel *kernel, const unsigned *grid, const unsigned *block, unsigned shared_bytes,
                   const void *params, int cooperative) {
    hearth::watch_divisions();
    alignas(128) unsigned char local[4096];
    unsigned char *copy = local;
    if (kernel->param_bytes > sizeof local || kernel->param_align > 128) {
        const size_t align = kernel->param_align > 128 ? kernel->param_align : 128;
        copy = static_cast<unsigned char *>(aligned_alloc(align, (kernel->param_bytes + align - 1) / align * align));
        if (copy == nullptr) abort();
    }
    memcpy(copy, params, kernel->param_bytes);
    const uint64_t blocks = uint64_t{grid[0]} * grid[1] * grid[2];
    hearth::Grid together(blocks);
    hearth::race::Findings races;
    hearth::Launch launch{kernel,       copy,
                          {grid[0], grid[1], grid[2]},
                          {block[0], block[1], block[2]},
                          shared_bytes, cooperative != 0 ? &together : nullptr,
                          hearth::begin_launch(kernel->name), &races};
    if (cooperative != 0) hearth::resident_for(blocks, hearth::run_one, &launch);
    else hearth::parallel_for(blocks, hearth::run_one, &launch);
    hearth::end_launch(launch.slot);
    races.keep();
    if (copy != local) free(copy);
    if (__fpending(stdout) != 0) fflush(stdout);  // CUDA does this at the next synchronisation
}

[[noreturn]] void hearth_trap(const char *what, hearth::Index thread) {
    const hearth::Index block = hearth_tls.block_idx;
    char text[512];
    snprintf(text, sizeof text, "hearth: %s: block: [%u,%u,%u], thread: [%u,%u,%u]", what, block.x, block.y, block.z,
             thread.x, thread.y, thread.z);
    hearth::give_up(text);
}

[[noreturn]] void hearth_assert_failed(
    const char *expression, const char *file, unsigned line, const char *function, hearth::Index thread) {
    const hearth::Index block = hearth_tls.block_idx;
    char text[2048];
    snprintf(text, sizeof text, "%s:%u: %s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.", file, line,
             function, block.x, block.y, block.z, thread.x, thread.y, thread.z, expression);
    hearth::give_up(text);
}

}
