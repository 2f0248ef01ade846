// One block whose threads are fibers: which threads can run, which wait, and for what.
#pragma once
#include "../include/hearth/abi.h"
#include "fiber.h"

namespace hearth {

inline constexpr unsigned warp_lanes = 32;
inline constexpr unsigned max_warps = max_block_threads / warp_lanes;

// Lanes of a warp that wait for each other in an operation with the same member mask.
struct Rendezvous {
    uint32_t mask, arrived;
    WarpFinish finish;
};

struct Warp {
    uint32_t alive;       // lanes that have not returned from the kernel
    uint32_t ready;       // lanes that can run (the running lane is not among them)
    uint32_t at_barrier;  // lanes in __syncthreads or grid.sync()
    uint32_t asking;      // lanes in __activemask
    uint32_t meetings;    // entries of `rendezvous` in use
    Rendezvous rendezvous[warp_lanes];
    WarpOp *ops[warp_lanes];
    const void *site[warp_lanes];    // where a lane asked for the active mask
    uint32_t active[warp_lanes];     // and the answer
};

class Block {
public:
    // Runs every thread of the block that `hearth_tls` describes to its end.
    void run(const Kernel &kernel, const void *params);

    int sync(Vote vote, int predicate);
    void sync_grid();
    void collective(uint32_t mask, WarpOp *op, WarpFinish finish);
    uint32_t active_mask(const void *site);
    void yield();

private:
    static void thread_main();
    void finish_thread();
    void suspend();
    void restore(unsigned thread);
    void wake(unsigned warp, uint32_t lanes);
    unsigned pick(unsigned warp, unsigned lane);
    void arrive();
    void release_barrier();
    bool try_complete(unsigned warp, unsigned meeting);
    void complete(unsigned warp, unsigned meeting);
    void answer_active(unsigned warp);
    void break_stall();

    const Kernel *kernel_ = nullptr;
    const void *params_ = nullptr;
    unsigned threads_ = 0, alive_ = 0, current_ = 0;
    unsigned arrived_ = 0;  // at the block's barrier, those at the grid's among them
    unsigned at_grid_ = 0;
    int count_ = 0;
    int outcome_ = 0;
    uint32_t ready_warps_ = 0;
    Context main_;
    Stacks stacks_;
    Warp warps_[max_warps];
    Context contexts_[max_block_threads];
};

}  // namespace hearth
