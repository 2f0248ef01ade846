#include "block.h"

#include <stdio.h>

#include "faults.h"
#include "grid.h"

namespace hearth {

namespace {

// Lowest set bit above `after`, cyclically, so that a lane that yields in a loop does not starve its neighbours.
unsigned next_bit(uint32_t bits, unsigned after) {
    const uint32_t above = after >= 31 ? 0 : bits & (~uint32_t{0} << (after + 1));
    return static_cast<unsigned>(__builtin_ctz(above != 0 ? above : bits));
}

Block &running() { return *static_cast<Block *>(hearth_tls.block); }

}  // namespace

void Block::run(const Kernel &kernel, const void *params) {
    kernel_ = &kernel;
    params_ = params;
    const Index dim = hearth_tls.block_dim;
    threads_ = alive_ = dim.x * dim.y * dim.z;
    arrived_ = at_grid_ = 0;
    count_ = 0;
    stacks_.reserve(threads_);
    const unsigned warps = (threads_ + warp_lanes - 1) / warp_lanes;
    for (unsigned w = 0; w < warps; ++w) {
        Warp &warp = warps_[w];
        const unsigned lanes = threads_ - w * warp_lanes < warp_lanes ? threads_ - w * warp_lanes : warp_lanes;
        warp.alive = warp.ready = lanes == warp_lanes ? ~uint32_t{0} : (uint32_t{1} << lanes) - 1;
        warp.at_barrier = warp.asking = 0;
        warp.meetings = 0;
    }
    ready_warps_ = warps == max_warps ? ~uint32_t{0} : (uint32_t{1} << warps) - 1;
    for (unsigned t = 0; t < threads_; ++t) prepare_context(contexts_[t], stacks_.top(t), &Block::thread_main);
    hearth_tls.block = this;
    current_ = pick(0, warp_lanes - 1);
    switch_context(main_, contexts_[current_]);
    hearth_tls.block = nullptr;
}

void Block::thread_main() {
    Block &block = running();
    block.restore(block.current_);
    block.kernel_->run_thread(block.params_);
    block.finish_thread();
}

void Block::finish_thread() {
    const unsigned w = current_ / warp_lanes, lane = current_ % warp_lanes;
    Warp &warp = warps_[w];
    warp.alive &= ~(uint32_t{1} << lane);
    --alive_;
    Context dead;
    if (alive_ == 0) switch_context(dead, main_);
    // Those who wait for this thread need not any longer: a returned thread takes part in nothing.
    for (unsigned i = warp.meetings; i-- > 0;) try_complete(w, i);
    if (arrived_ == alive_) release_barrier();
    current_ = pick(w, lane);
    switch_context(dead, contexts_[current_]);
    __builtin_unreachable();
}

void Block::restore(unsigned thread) {
    const Index dim = hearth_tls.block_dim;
    hearth_tls.thread_rank = thread;
    hearth_tls.thread_idx.x = thread % dim.x;
    hearth_tls.thread_idx.y = thread / dim.x % dim.y;
    hearth_tls.thread_idx.z = thread / (dim.x * dim.y);
}

// Lets another thread run; returns when this one has been woken and picked again.
void Block::suspend() {
    const unsigned self = current_;
    const unsigned next = pick(self / warp_lanes, self % warp_lanes);
    current_ = next;
    if (next == self) return;
    const Index index = hearth_tls.thread_idx;
    switch_context(contexts_[self], contexts_[next]);
    hearth_tls.thread_rank = self;
    hearth_tls.thread_idx = index;
}

void Block::wake(unsigned warp, uint32_t lanes) {
    warps_[warp].ready |= lanes;
    if (warps_[warp].ready != 0) ready_warps_ |= uint32_t{1} << warp;
}

// The thread to run after `lane` of `warp`: of the same warp while it has one, which keeps warps in step.
unsigned Block::pick(unsigned warp, unsigned lane) {
    for (;;) {
        Warp &here = warps_[warp];
        if (here.ready == 0 && here.asking != 0) answer_active(warp);
        if (here.ready != 0) {
            const unsigned chosen = next_bit(here.ready, lane);
            here.ready &= ~(uint32_t{1} << chosen);
            return warp * warp_lanes + chosen;
        }
        ready_warps_ &= ~(uint32_t{1} << warp);
        if (ready_warps_ == 0) break_stall();
        warp = next_bit(ready_warps_, warp);
        lane = warp_lanes - 1;
    }
}

// Nobody can run. Some lanes wait in a warp operation whose mask names lanes that never come (they are at a barrier
// or in another branch); the mask was wrong, and a GPU would go on with those that are there, so do that.
void Block::break_stall() {
    const unsigned warps = (threads_ + warp_lanes - 1) / warp_lanes;
    for (unsigned w = 0; w < warps; ++w) {
        if (warps_[w].asking != 0) return answer_active(w);
        if (warps_[w].meetings != 0) return complete(w, 0);
    }
    char text[128];
    snprintf(text, sizeof text, "hearth: deadlock: no thread of block (%u,%u,%u) can run", hearth_tls.block_idx.x,
             hearth_tls.block_idx.y, hearth_tls.block_idx.z);
    give_up(text);
}

int Block::sync(Vote vote, int predicate) {
    if (vote != Vote::none && predicate != 0) ++count_;
    arrive();
    // Threads that have returned are not counted, so "all" compares with those who took part.
    switch (vote) {
        case Vote::all: return (outcome_ & 1) != 0;
        case Vote::any: return (outcome_ >> 1) != 0;
        case Vote::count: return outcome_ >> 1;
        default: return 0;
    }
}

// The block's barrier with the grid's inside: the last thread to come waits there for the other blocks.
void Block::sync_grid() {
    ++at_grid_;
    arrive();
}

void Block::arrive() {
    if (++arrived_ == alive_) return release_barrier();
    warps_[current_ / warp_lanes].at_barrier |= uint32_t{1} << (current_ % warp_lanes);
    suspend();
}

void Block::release_barrier() {
    if (arrived_ == 0) return;
    if (at_grid_ != 0) {
        if (at_grid_ != arrived_) hearth_trap("grid.sync() in some threads of a block, __syncthreads() in others");
        at_grid_ = 0;
        static_cast<Grid *>(hearth_tls.grid)->sync();
    }
    outcome_ = (count_ << 1) | (count_ == static_cast<int>(arrived_) ? 1 : 0);
    arrived_ = 0;
    count_ = 0;
    const unsigned warps = (threads_ + warp_lanes - 1) / warp_lanes;
    for (unsigned w = 0; w < warps; ++w) {
        const uint32_t lanes = warps_[w].at_barrier;
        warps_[w].at_barrier = 0;
        if (lanes != 0) wake(w, lanes);
    }
}

void Block::collective(uint32_t mask, WarpOp *op, WarpFinish finish) {
    const unsigned w = current_ / warp_lanes, lane = current_ % warp_lanes;
    Warp &warp = warps_[w];
    const uint32_t self = uint32_t{1} << lane;
    mask |= self;
    warp.ops[lane] = op;
    unsigned i = 0;
    while (i < warp.meetings && warp.rendezvous[i].mask != mask) ++i;
    if (i == warp.meetings) warp.rendezvous[warp.meetings++] = Rendezvous{mask, 0, finish};
    warp.rendezvous[i].arrived |= self;
    if (try_complete(w, i)) {
        warp.ready &= ~self;  // it was woken with the others but is running already
        return;
    }
    suspend();
}

bool Block::try_complete(unsigned w, unsigned meeting) {
    const Rendezvous &r = warps_[w].rendezvous[meeting];
    if ((r.mask & warps_[w].alive & ~r.arrived) != 0) return false;
    complete(w, meeting);
    return true;
}

void Block::complete(unsigned w, unsigned meeting) {
    Warp &warp = warps_[w];
    const Rendezvous done = warp.rendezvous[meeting];
    warp.rendezvous[meeting] = warp.rendezvous[--warp.meetings];
    if (done.finish != nullptr) done.finish(warp.ops, done.arrived);
    wake(w, done.arrived);
}

// The lanes that ask for the active mask at one place are those that are converged there. That is known only when
// every other lane of the warp waits for something, so the question is answered by pick().
uint32_t Block::active_mask(const void *site) {
    const unsigned lane = current_ % warp_lanes;
    Warp &warp = warps_[current_ / warp_lanes];
    warp.site[lane] = site;
    warp.asking |= uint32_t{1} << lane;
    suspend();
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

void Block::yield() {
    wake(current_ / warp_lanes, uint32_t{1} << (current_ % warp_lanes));
    // Another warp may be the one waited for: start behind this one.
    const unsigned self = current_, w = self / warp_lanes;
    const unsigned other = next_bit(ready_warps_, w);
    const unsigned next = other == w ? pick(w, self % warp_lanes) : pick(other, warp_lanes - 1);
    current_ = next;
    if (next == self) return;
    const Index index = hearth_tls.thread_idx;
    switch_context(contexts_[self], contexts_[next]);
    hearth_tls.thread_rank = self;
    hearth_tls.thread_idx = index;
}

}  // namespace hearth

extern "C" {

// A kernel is run without fibers when no synchronisation is reachable from it by name. Should one be reached all the
// same (by a call that the analysis cannot see), the result would be wrong without a word: stop instead.
static hearth::Block &block_or_die(const char *what) {
    if (hearth_tls.block == nullptr) {
        char text[256];
        snprintf(text, sizeof text,
                 "hearth: %s was reached in a kernel that was taken for one that does not synchronise", what);
        hearth::give_up(text);
    }
    return *static_cast<hearth::Block *>(hearth_tls.block);
}

void hearth_grid_sync(void) {
    if (hearth_tls.grid == nullptr) hearth_trap("grid.sync() in a launch that is not cooperative");
    block_or_die("grid.sync()").sync_grid();
}

int hearth_block_sync(hearth::Vote vote, int predicate) { return block_or_die("__syncthreads").sync(vote, predicate); }

void hearth_warp_collective(uint32_t mask, hearth::WarpOp *op, hearth::WarpFinish finish) {
    block_or_die("a warp operation").collective(mask, op, finish);
}

uint32_t hearth_warp_active(const void *site) { return block_or_die("__activemask").active_mask(site); }

void hearth_yield(void) {
    if (hearth_tls.block != nullptr) static_cast<hearth::Block *>(hearth_tls.block)->yield();
}

}
