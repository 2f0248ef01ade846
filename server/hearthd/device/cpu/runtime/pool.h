// The worker threads of this process. Every launch and every caller shares them.
#pragma once
#include <stdint.h>

namespace hearth {

using BlockFn = void (*)(void *context, uint64_t index);

// Calls fn(context, 0 .. count-1) and returns when all calls have returned. The calling thread takes part, so a single
// block needs no hand-over, and a launch that never ends delays no other caller.
void parallel_for(uint64_t count, BlockFn fn, void *context);

// Like parallel_for, with all calls running concurrently on separate threads: calls may wait for each other.
void resident_for(uint64_t count, BlockFn fn, void *context);

}  // namespace hearth

extern "C" unsigned hearth_worker_count(void);
extern "C" void hearth_set_workers(unsigned count);
