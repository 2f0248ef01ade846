// Waiting for other ranks: bells that they ring, meetings of all of them, and the end of it all by an abort.
#pragma once
#include <limits.h>

#include <algorithm>

#include "segment.h"

namespace hearth {

enum class Progress { nothing, moved, finished, failed };

// After a change that `rank` may be waiting for.
void ring(Segment &s, unsigned rank);
void abort(Segment &s);

bool all_arrived(const Segment &s, uint32_t meeting);
int64_t now_ns();
// Returns when `bell` is no longer `seen`, or somebody rings, or after so long.
void sleep_on(Rank &me, uint32_t seen, int64_t nanoseconds);

// Calls `step` until it is finished or has failed; sleeps while there is nothing to do. `timeout_ns` is for how long a
// rank waits at most without anything having moved.
template <class Step>
Status wait(Segment &s, unsigned rank, int64_t timeout_ns, Step step) {
    constexpr unsigned spins = 200;  // peers on other cores come within a microsecond or two
    constexpr int64_t nap_ns = 100000000;  // a rank killed between its last step and its ring leaves nobody asleep
    Rank &me = s.rank[rank];
    unsigned idle = 0;
    int64_t since = 0;
    for (;;) {
        const uint32_t bell = me.bell.load();
        const Progress progress = step();
        if (s.aborted.load() != 0) return aborted;
        if (progress == Progress::finished) return done;
        if (progress == Progress::failed) return mismatch;
        if (progress == Progress::moved) {
            idle = 0;
            continue;
        }
        if (++idle < spins) continue;
        const int64_t now = now_ns();
        if (idle == spins) since = now;
        const int64_t left = timeout_ns < 0 ? nap_ns : timeout_ns - (now - since);
        if (left <= 0) return timed_out;
        sleep_on(me, bell, std::min(left, nap_ns));
    }
}

// Returns when all ranks have come to it; `meanwhile` is what this rank gets on with until then, as `wait`'s step.
template <class Step>
Status meet(Segment &s, unsigned rank, int64_t timeout_ns, Step meanwhile) {
    const uint32_t meeting = s.rank[rank].arrived.fetch_add(1) + 1;
    if (all_arrived(s, meeting)) {  // the last one rings for all, the others need not be woken for less
        for (unsigned r = 0; r < s.ranks; ++r) {
            if (r != rank) ring(s, r);
        }
    }
    return wait(s, rank, timeout_ns, [&] {
        if (all_arrived(s, meeting)) return Progress::finished;
        const Progress progress = meanwhile();
        return progress == Progress::finished ? Progress::nothing : progress;
    });
}

}  // namespace hearth
