// One block: runs its threads one after another, and suspends those that meet others.
//
// Threads run on the worker's own stack in the order of their ranks. A thread that reaches a barrier, a warp operation
// or a yield stays suspended on its present stack, and the following threads run on a new one (lazy fibers). A block in
// which no thread meets another has no cost beyond the calls of its threads.
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
    uint32_t alive;       // lanes that have not returned from the kernel, including those that have not started
    uint32_t ready;       // suspended lanes that can run
    uint32_t at_barrier;  // lanes in __syncthreads or grid.sync()
    uint32_t asking;      // lanes in __activemask
    uint32_t meetings;    // entries of `rendezvous` in use
    uint32_t turn;        // the lane that ran last when another warp's thread yielded
    Rendezvous rendezvous[warp_lanes];
    WarpLanes lanes;
    const void *site[warp_lanes];  // call site at which a lane requested the active mask
    uint32_t active[warp_lanes];   // the resulting mask
};

class Block {
public:
    // Runs every thread of the block that `hearth_tls` describes to its end.
    void run(const Kernel &kernel, const void *params);

    // Meetings of threads. `rank` is that of the running thread.
    int sync(unsigned rank, Vote vote, int predicate);
    void sync_grid(unsigned rank);
    uint64_t collective(unsigned rank, uint32_t mask, uint64_t value, uint64_t aux, WarpFinish finish);
    uint32_t active_mask(unsigned rank, const void *site);
    void yield(unsigned rank);

private:
    static constexpr unsigned own_stack = max_block_threads;  // the worker's

    static void stack_main();
    void work(unsigned first, unsigned stack);
    Index index_of(unsigned rank) const;
    unsigned warps() const { return (threads_ + warp_lanes - 1) / warp_lanes; }

    void enter(unsigned rank) {
        if (__builtin_expect(rank >= next_, false)) meet_first(rank);
    }
    void meet_first(unsigned rank);
    void begin();
    void returned_before(unsigned rank);
    void finish(unsigned rank);
    void suspend(unsigned rank);
    void resume(Context &from, unsigned next);
    void start_stack(Context &from);
    void wake(unsigned warp, uint32_t lanes);
    unsigned pick(unsigned warp, unsigned lane);
    void arrive(unsigned rank);
    void release_barrier();
    bool try_complete(unsigned warp, unsigned meeting);
    void complete(unsigned warp, unsigned meeting);
    void answer_active(unsigned warp);
    void break_stall();

    const Kernel *kernel_ = nullptr;
    const void *params_ = nullptr;
    unsigned threads_ = 0, alive_ = 0;
    unsigned next_ = 0;     // this rank and higher ones have not started, as far as is known
    bool begun_ = false;    // a thread of this block has met others: the fields below are valid
    unsigned arrived_ = 0;  // number of threads at the block's barrier, including those at the grid's
    unsigned at_grid_ = 0;
    int count_ = 0;
    int outcome_ = 0;
    uint32_t ready_warps_ = 0;
    unsigned loop_stack_ = own_stack;  // the stack on which threads were last started
    unsigned free_ = 0;                // entries of `free_stacks_` in use
    unsigned stacks_used_ = 0;         // number of stacks that this block has used so far
    Context main_;                     // the worker's own stack, when its thread or loop has ended
    Stacks stacks_;
    Warp warps_[max_warps];
    Context contexts_[max_block_threads];
    uint16_t free_stacks_[max_block_threads];
};

// The block that this thread runs.
extern __thread Block *running_block __attribute__((tls_model("initial-exec")));

}  // namespace hearth
