#include "block.h"

#include <sched.h>
#include <stdio.h>

#include "faults.h"
#include "grid.h"
#include "racecheck.h"

__thread hearth::Block *hearth::running_block = nullptr;

namespace hearth {

namespace {

// Lowest set bit above `after`, cyclically, so that a lane that yields in a loop does not starve its neighbours.
unsigned next_bit(uint32_t bits, unsigned after) {
    const uint32_t above = after >= 31 ? 0 : bits & (~uint32_t{0} << (after + 1));
    return static_cast<unsigned>(__builtin_ctz(above != 0 ? above : bits));
}

uint32_t lanes_below(unsigned lane) { return (uint32_t{1} << lane) - 1; }
uint32_t bit(unsigned lane) { return uint32_t{1} << lane; }

}  // namespace

void Block::run(const Kernel &kernel, const void *params) {
    kernel_ = &kernel;
    params_ = params;
    const Index dim = hearth_tls.block_dim;
    threads_ = dim.x * dim.y * dim.z;
    next_ = 0;
    begun_ = false;
    work(0, own_stack);
}

// The loop of the worker's own stack and of each fiber: starts threads from `first` on, and when none is left to start
// on this stack, continues suspended ones. Returns on the worker's own stack only, when all threads have ended.
void Block::work(unsigned first, unsigned stack) {
    for (;;) {
        loop_stack_ = stack;
        const uint32_t ended = kernel_->run(params_, index_of(first));
        if (!begun_) return;
        if (ended == no_thread) returned_before(threads_);
        else finish(ended);
        if (alive_ == 0) {
            if (stack == own_stack) return;
            Context dead;
            switch_context(dead, main_);
        }
        const unsigned last = ended == no_thread ? threads_ - 1 : ended;
        const unsigned next = pick(last / warp_lanes, last % warp_lanes);
        if (next == next_) {  // it has not started, and this stack is free for it
            first = next;
            continue;
        }
        if (stack == own_stack) {
            switch_context(main_, contexts_[next]);
            return;  // the last thread has ended on another stack
        }
        free_stacks_[free_++] = static_cast<uint16_t>(stack);
        Context dead;
        switch_context(dead, contexts_[next]);
    }
}

void Block::stack_main() {
    Block &block = *running_block;
    block.work(block.next_, block.loop_stack_);
    __builtin_unreachable();
}

Index Block::index_of(unsigned rank) const {
    const Index dim = hearth_tls.block_dim;
    if (rank < dim.x) return Index{rank, 0, 0};  // spares the divisions
    return Index{rank % dim.x, rank / dim.x % dim.y, rank / (dim.x * dim.y)};
}

// Called when the thread `rank` first meets others. The threads between it and the last such thread have returned.
__attribute__((noinline)) void Block::meet_first(unsigned rank) {
    if (!begun_) begin();
    returned_before(rank);
    next_ = rank + 1;
}

void Block::begin() {
    begun_ = true;
    alive_ = threads_;
    arrived_ = at_grid_ = 0;
    count_ = 0;
    ready_warps_ = 0;
    free_ = stacks_used_ = 0;
    for (unsigned w = 0; w < warps(); ++w) {
        Warp &warp = warps_[w];
        const unsigned lanes = threads_ - w * warp_lanes;
        warp.alive = lanes >= warp_lanes ? ~uint32_t{0} : lanes_below(lanes);
        warp.ready = warp.at_barrier = warp.asking = 0;
        warp.meetings = 0;
        warp.turn = warp_lanes - 1;
    }
}

// Records that the threads from `next_` up to, but not including, `rank` have returned without meeting another.
void Block::returned_before(unsigned rank) {
    if (next_ == rank) return;
    const unsigned from = next_ / warp_lanes, to = (rank - 1) / warp_lanes;
    for (unsigned w = from; w <= to; ++w) {
        const unsigned end = rank - w * warp_lanes;
        const uint32_t below = end >= warp_lanes ? ~uint32_t{0} : lanes_below(end);
        const uint32_t gone = w == from ? below & ~lanes_below(next_ % warp_lanes) : below;
        warps_[w].alive &= ~gone;
    }
    alive_ -= rank - next_;
    next_ = rank;
    for (unsigned w = from; w <= to; ++w) {
        for (unsigned i = warps_[w].meetings; i-- > 0;) try_complete(w, i);
    }
    if (arrived_ == alive_) release_barrier();
}

void Block::finish(unsigned rank) {
    const unsigned w = rank / warp_lanes;
    Warp &warp = warps_[w];
    warp.alive &= ~bit(rank % warp_lanes);
    --alive_;
    // Threads that wait for this thread continue: a returned thread takes part in no meeting.
    for (unsigned i = warp.meetings; i-- > 0;) try_complete(w, i);
    if (arrived_ == alive_) release_barrier();
}

// Runs another thread; returns when this one has been woken and picked again.
inline __attribute__((always_inline)) void Block::suspend(unsigned rank) {
    const unsigned w = rank / warp_lanes;
    const auto *const later = static_cast<const unsigned char *>(contexts_[(rank + 3) % max_block_threads].sp);
    __builtin_prefetch(later);
    __builtin_prefetch(later + 64);
    unsigned next = 0;
    if (warps_[w].ready != 0) {
        const unsigned chosen = next_bit(warps_[w].ready, rank % warp_lanes);
        warps_[w].ready &= ~bit(chosen);
        next = w * warp_lanes + chosen;
    } else {
        next = pick(w, rank % warp_lanes);
    }
    if (next != rank) resume(contexts_[rank], next);
}

// Continues the thread `next`, or starts it on a separate stack.
inline __attribute__((always_inline)) void Block::resume(Context &from, unsigned next) {
    if (__builtin_expect(next < next_, true)) switch_context(from, contexts_[next]);
    else start_stack(from);
}

__attribute__((noinline)) void Block::start_stack(Context &from) {
    if (free_ != 0) {
        loop_stack_ = free_stacks_[--free_];
    } else {
        if (stacks_used_ == 0) stacks_.reserve(threads_);
        loop_stack_ = stacks_used_++;
    }
    Context start;
    prepare_context(start, stacks_.top(loop_stack_), &Block::stack_main);
    switch_context(from, start);
}

void Block::wake(unsigned warp, uint32_t lanes) {
    warps_[warp].ready |= lanes;
    if (warps_[warp].ready != 0) ready_warps_ |= bit(warp);
}

// Returns the thread to run after `lane` of `warp`: one of the same warp if possible, which keeps warps in step. The
// result is `next_` for a thread that has not started.
__attribute__((noinline)) unsigned Block::pick(unsigned warp, unsigned lane) {
    for (;;) {
        Warp &here = warps_[warp];
        if (here.ready == 0) {
            if (next_ / warp_lanes == warp && next_ < threads_) return next_;
            if (here.asking != 0) answer_active(warp);
        }
        if (here.ready != 0) {
            const unsigned chosen = next_bit(here.ready, lane);
            here.ready &= ~bit(chosen);
            return warp * warp_lanes + chosen;
        }
        ready_warps_ &= ~bit(warp);
        if (ready_warps_ == 0) {
            if (next_ < threads_) return next_;
            break_stall();
        }
        warp = next_bit(ready_warps_, warp);
        lane = warp_lanes - 1;
    }
}

// No thread can run. Some lanes wait in a warp operation whose mask names lanes that never come (they are at a barrier
// or in another branch); the mask is wrong. A GPU would continue with the lanes that have arrived, and so does this
// function.
void Block::break_stall() {
    for (unsigned w = 0; w < warps(); ++w) {
        if (warps_[w].asking != 0) return answer_active(w);
        if (warps_[w].meetings != 0) return complete(w, 0);
    }
    char text[128];
    snprintf(text, sizeof text, "hearth: deadlock: no thread of block (%u,%u,%u) can run", hearth_tls.block_idx.x,
             hearth_tls.block_idx.y, hearth_tls.block_idx.z);
    give_up(text);
}

inline __attribute__((always_inline)) int Block::sync(unsigned rank, Vote vote, int predicate) {
    enter(rank);
    if (vote != Vote::none && predicate != 0) ++count_;
    arrive(rank);
    // Threads that have returned are not counted, so "all" compares with the number of participating threads.
    switch (vote) {
        case Vote::all: return (outcome_ & 1) != 0;
        case Vote::any: return (outcome_ >> 1) != 0;
        default: return outcome_ >> 1;
    }
}

// The block's barrier with the grid's inside it: the last thread to arrive waits for the other blocks.
void Block::sync_grid(unsigned rank) {
    enter(rank);
    ++at_grid_;
    arrive(rank);
}

inline __attribute__((always_inline)) void Block::arrive(unsigned rank) {
    if (++arrived_ == alive_) return release_barrier();
    warps_[rank / warp_lanes].at_barrier |= bit(rank % warp_lanes);
    suspend(rank);
}

__attribute__((noinline)) void Block::release_barrier() {
    if (arrived_ == 0) return;
    if (at_grid_ != 0) {
        if (at_grid_ != arrived_) give_up("hearth: grid.sync() in some threads of a block, __syncthreads() in others");
        at_grid_ = 0;
        static_cast<Grid *>(hearth_tls.grid)->sync();
    }
    if (race::running != nullptr) race::running->barrier();
    outcome_ = (count_ << 1) | (count_ == static_cast<int>(arrived_) ? 1 : 0);
    arrived_ = 0;
    count_ = 0;
    for (unsigned w = 0; w < warps(); ++w) {
        const uint32_t lanes = warps_[w].at_barrier;
        warps_[w].at_barrier = 0;
        if (lanes != 0) wake(w, lanes);
    }
}

inline __attribute__((always_inline)) uint64_t Block::collective(
    unsigned rank, uint32_t mask, uint64_t value, uint64_t aux, WarpFinish finish) {
    enter(rank);
    const unsigned w = rank / warp_lanes, lane = rank % warp_lanes;
    Warp &warp = warps_[w];
    const uint32_t self = bit(lane);
    mask |= self;
    warp.lanes.value[lane] = value;
    warp.lanes.aux[lane] = aux;
    unsigned i = 0;
    while (i < warp.meetings && warp.rendezvous[i].mask != mask) ++i;
    if (i == warp.meetings) warp.rendezvous[warp.meetings++] = Rendezvous{mask, 0, finish};
    const uint32_t arrived = warp.rendezvous[i].arrived |= self;
    if ((mask & warp.alive & ~arrived) == 0) {
        complete(w, i);
        warp.ready &= ~self;  // it was woken with the others, but is already running
    } else {
        suspend(rank);
    }
    return warp.lanes.result[lane];
}

bool Block::try_complete(unsigned w, unsigned meeting) {
    const Rendezvous &r = warps_[w].rendezvous[meeting];
    if ((r.mask & warps_[w].alive & ~r.arrived) != 0) return false;
    complete(w, meeting);
    return true;
}

__attribute__((noinline)) void Block::complete(unsigned w, unsigned meeting) {
    Warp &warp = warps_[w];
    const Rendezvous done = warp.rendezvous[meeting];
    warp.rendezvous[meeting] = warp.rendezvous[--warp.meetings];
    if (race::running != nullptr) race::running->met(w * warp_lanes, done.arrived, done.finish);
    done.finish(warp.lanes, done.arrived);
    wake(w, done.arrived);
}

// The lanes that request the active mask at one call site are converged there. They are known only when every other
// lane of the warp waits, so pick() sets the result.
uint32_t Block::active_mask(unsigned rank, const void *site) {
    enter(rank);
    const unsigned lane = rank % warp_lanes;
    Warp &warp = warps_[rank / warp_lanes];
    warp.site[lane] = site;
    warp.asking |= bit(lane);
    suspend(rank);
    return warp.active[lane];
}

void Block::answer_active(unsigned w) {
    Warp &warp = warps_[w];
    const void *const site = warp.site[__builtin_ctz(warp.asking)];
    uint32_t together = 0;
    for (uint32_t rest = warp.asking; rest != 0; rest &= rest - 1) {
        if (warp.site[__builtin_ctz(rest)] == site) together |= rest & -rest;
    }
    for (uint32_t rest = together; rest != 0; rest &= rest - 1) warp.active[__builtin_ctz(rest)] = together;
    warp.asking &= ~together;
    wake(w, together);
}

// Runs a thread that has not started, if there is one, because the caller may wait for it; else a thread of another
// warp.
void Block::yield(unsigned rank) {
    if (threads_ == 1) {
        sched_yield();  // the thread may wait for another block
        return;
    }
    enter(rank);
    const unsigned w = rank / warp_lanes, lane = rank % warp_lanes;
    wake(w, bit(lane));
    if (next_ < threads_) return resume(contexts_[rank], next_);
    warps_[w].turn = lane;
    const unsigned other = next_bit(ready_warps_, w);
    const unsigned next = pick(other, warps_[other].turn);
    if (next != rank) resume(contexts_[rank], next);
    else sched_yield();
}

}  // namespace hearth

extern "C" {

void hearth_grid_sync(uint32_t rank) { hearth::running_block->sync_grid(rank); }

int hearth_block_sync(uint32_t rank, hearth::Vote vote, int predicate) {
    return hearth::running_block->sync(rank, vote, predicate);
}

uint64_t hearth_warp_collective(
    uint32_t rank, uint32_t mask, uint64_t value, uint64_t aux, hearth::WarpFinish finish) {
    return hearth::running_block->collective(rank, mask, value, aux, finish);
}

uint32_t hearth_warp_active(uint32_t rank, const void *site) {
    return hearth::running_block->active_mask(rank, site);
}

void hearth_yield(uint32_t rank) { hearth::running_block->yield(rank); }

}
