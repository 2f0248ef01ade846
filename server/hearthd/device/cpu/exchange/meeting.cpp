#include "meeting.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace hearth {

static int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * int64_t{1000000000} + t.tv_nsec;
}

static void wake(std::atomic<uint32_t> &bell) {
    syscall(SYS_futex, &bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// A sleeping rank sets `waiting` before the kernel compares the bell, and the bell changes before `waiting` is read
// here: either the sleeper or this function sees the other's change.
void ring(Segment &s, unsigned rank) {
    Rank &it = s.rank[rank];
    it.bell.fetch_add(1);
    if (it.waiting.load() != 0) wake(it.bell);
}

// Returns when the bell differs from `seen`, when another rank rings, or after `nanoseconds`.
static void sleep_on(Rank &me, uint32_t seen, int64_t nanoseconds) {
    const timespec t{static_cast<time_t>(nanoseconds / 1000000000), static_cast<long>(nanoseconds % 1000000000)};
    me.waiting.store(1);
    syscall(SYS_futex, &me.bell, FUTEX_WAIT, seen, &t, nullptr, 0);
    me.waiting.store(0);
}

void abort(Segment &s) {
    s.aborted.store(1);
    for (unsigned r = 0; r < s.ranks; ++r) {
        s.rank[r].bell.fetch_add(1);
        wake(s.rank[r].bell);
    }
}

void leave(Segment &s, unsigned rank) {
    Rank &me = s.rank[rank];
    me.left.store(1);
    me.bell.fetch_add(1);
    wake(me.bell);
}

static bool all_arrived(const Segment &s, uint32_t meeting) {
    for (unsigned r = 0; r < s.ranks; ++r) {
        if (static_cast<int32_t>(s.rank[r].arrived.load() - meeting) < 0) return false;
    }
    return true;
}

Status wait(Segment &s, unsigned rank, int64_t timeout_ns, Step step) {
    constexpr unsigned spins = 200;  // peers on other cores arrive within one or two microseconds
    constexpr int64_t nap_ns = 100000000;  // limits the sleep if a rank is killed between its last step and its ring
    Rank &me = s.rank[rank];
    unsigned idle = 0;
    int64_t since = 0;
    for (;;) {
        const uint32_t bell = me.bell.load();
        const Progress progress = step();
        if (s.aborted.load() != 0 || me.left.load() != 0) return aborted;
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
        sleep_on(me, bell, smaller(left, nap_ns));
    }
}

Status meet(Segment &s, unsigned rank, int64_t timeout_ns, Step meanwhile) {
    const uint32_t meeting = s.rank[rank].arrived.fetch_add(1) + 1;
    if (all_arrived(s, meeting)) {  // only the last rank wakes the others
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
