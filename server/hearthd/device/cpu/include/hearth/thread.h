// The running thread's record: the built-in variables and its rank, valid in every function that the thread calls.
//
// Each module has a separate record per operating system thread. It is written before each thread's turn and restored
// after each meeting with other threads. Its address is never taken (CUDA allows no pointer or reference to a built-in
// variable), so that the compiler knows that no pointer of the kernel's leads to it: where the kernel's code is inlined,
// the record costs nothing.
#pragma once
#include "abi.h"
#include "racecheck.h"
#include "vector_types.h"

// Ordinary variables, which a program's own declarations of these names hide. Not const, because they change;
// mistakes.py refuses assignments.
static __thread uint3 threadIdx, blockIdx;
static __thread dim3 blockDim, gridDim;

namespace hearth {

struct Thread {
    uint32_t rank;  // linear index within the block
    uint32_t met;   // 1 if it has met others; the loop that started it has then ended
};

static __thread Thread self;

inline uint3 uint3_of(const Index &i) { return uint3{i.x, i.y, i.z}; }
inline Index thread_index() { return Index{threadIdx.x, threadIdx.y, threadIdx.z}; }

inline unsigned thread_rank() { return self.rank; }
inline unsigned lane_id() { return self.rank % 32; }

// Around a meeting: other threads run until it returns.
class Meeting {
public:
    Meeting() : index_(threadIdx), rank_(self.rank) {}
    ~Meeting() {
        threadIdx = index_;
        self.rank = rank_;
        self.met = 1;
        race_thread(rank_);
    }
    Meeting(const Meeting &) = delete;
    Meeting &operator=(const Meeting &) = delete;
    uint32_t rank() const { return rank_; }

private:
    const uint3 index_;
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
[[noreturn]] inline void trap(const char *what) { hearth_trap(what, thread_index()); }
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
