// The module's part of the race check (HEARTH_CPU_RACECHECK): which thread runs. Empty in other builds.
//
// With HEARTH_RACECHECK defined, the compiler calls the runtime before each access to memory (-fsanitize=thread;
// runtime/race_hooks.cpp).
#pragma once
#include "abi.h"

#ifdef HEARTH_RACECHECK

// Threads of a block are about to run on this stack. `record` is the module's thread-local record of the running
// thread, `sync` the operation of __syncwarp(), which alone among the warp's operations orders memory.
extern "C" void hearth_race_enter(const void *record, size_t bytes, hearth::WarpFinish sync);

namespace hearth {
inline void finish_sync(WarpLanes &lanes, uint32_t mask);
inline void race_thread(uint32_t rank) { hearth_tls.running = rank; }
}  // namespace hearth

#else

namespace hearth {
inline void race_thread(uint32_t) {}
}  // namespace hearth

#endif
