// The module's part of the race check (HEARTH_CPU_RACECHECK): the running thread, and the synchronisations that the
// runtime does not see itself. Empty in other builds.
//
// With HEARTH_RACECHECK defined, the compiler calls the runtime before each access to memory (-fsanitize=thread;
// runtime/race_hooks.cpp).
#pragma once
#include "abi.h"

#ifdef HEARTH_RACECHECK

// Threads of a block are about to run on this stack. `record` is the module's thread-local record of the running
// thread, which consists of `count` variables; `sync` is the operation of __syncwarp(), which alone among the warp's
// operations orders memory.
extern "C" void hearth_race_enter(const hearth::Unshared *record, size_t count, hearth::WarpFinish sync);
// A meeting that the runtime does not see: orders the accesses of a thread before it arrives before the accesses of
// another thread after it departs. `meeting` is an address that the meeting's threads share.
extern "C" void hearth_race_arrive(const void *meeting);
extern "C" void hearth_race_depart(const void *meeting);

// For functions of these headers whose thread-local variables are not shared memory.
#define HEARTH_UNCHECKED __attribute__((no_sanitize("thread"), noinline))

namespace hearth {
inline void race_arrive(const void *meeting) { hearth_race_arrive(meeting); }
inline void race_depart(const void *meeting) { hearth_race_depart(meeting); }
inline void finish_sync(WarpLanes &lanes, uint32_t mask);
inline void race_thread(uint32_t rank) { hearth_tls.running = rank; }
}  // namespace hearth

#else

#define HEARTH_UNCHECKED

namespace hearth {
inline void race_arrive(const void *) {}
inline void race_depart(const void *) {}
inline void race_thread(uint32_t) {}
}  // namespace hearth

#endif
