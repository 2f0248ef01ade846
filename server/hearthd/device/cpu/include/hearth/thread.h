// The running thread's record: its indices, valid in every function that the thread calls.
//
// Each module has a separate record per operating system thread. It is written before each thread's turn and restored
// after each meeting with other threads. Its address is never taken, so that the compiler knows that no pointer of the
// kernel's leads to it: where the kernel's code is inlined, the record costs nothing.
#pragma once
#include "abi.h"
#include "racecheck.h"

namespace hearth {

struct Thread {
    Index thread_idx, block_idx, block_dim, grid_dim;
    uint32_t rank;  // linear index within the block
    uint32_t met;   // 1 if it has met others; the loop that started it has then ended
};

static __thread Thread self;

inline unsigned thread_rank() { return self.rank; }
inline unsigned lane_id() { return self.rank % 32; }

// Around a meeting: other threads run until it returns.
class Meeting {
public:
    Meeting() : index_(self.thread_idx), rank_(self.rank) {}
    ~Meeting() {
        self.thread_idx = index_;
        self.rank = rank_;
        self.met = 1;
        race_thread(rank_);
    }
    Meeting(const Meeting &) = delete;
    Meeting &operator=(const Meeting &) = delete;
    uint32_t rank() const { return rank_; }

private:
    const Index index_;
    const uint32_t rank_;
};

inline int block_sync(Vote vote, int predicate) {
    const Meeting meeting;
    return hearth_block_sync(meeting.rank(), vote, predicate);
}
inline uint64_t warp_collective(uint32_t mask, uint64_t value, uint64_t aux, WarpFinish finish) {
    const Meeting meeting;
    return hearth_warp_collective(meeting.rank(), mask, value, aux, finish);
}
inline uint32_t warp_active(const void *site) {
    const Meeting meeting;
    return hearth_warp_active(meeting.rank(), site);
}
[[noreturn]] inline void trap(const char *what) { hearth_trap(what, self.thread_idx); }
inline void grid_sync() {
    if (hearth_tls.grid == nullptr) trap("grid.sync() in a launch that is not cooperative");
    const Meeting meeting;
    hearth_grid_sync(meeting.rank());
}
// Lets the other threads of the block run.
inline void yield() {
    const Meeting meeting;
    hearth_yield(meeting.rank());
}
// Called by operations by which a program may be spinning. A thread that has yielded needs a separate stack, so only
// every 16th call yields: a spin loop soon makes so many calls, other code seldom does.
inline void relax() {
    if ((++hearth_tls.spins & 15u) == 0) yield();
}
// For a loop's condition (spin_loops.py).
constexpr bool relaxed() {
    if (!__builtin_is_constant_evaluated()) relax();
    return true;
}

}  // namespace hearth
