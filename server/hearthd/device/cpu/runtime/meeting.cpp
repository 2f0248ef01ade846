#include "meeting.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace hearth {

int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * int64_t{1000000000} + t.tv_nsec;
}

static void wake(std::atomic<uint32_t> &bell) {
    syscall(SYS_futex, &bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// The sleeper says that it waits before the kernel compares the bell, and the bell has changed before that is looked
// at here: one of both sees the other.
void ring(Segment &s, unsigned rank) {
    Rank &it = s.rank[rank];
    it.bell.fetch_add(1);
    if (it.waiting.load() != 0) wake(it.bell);
}

void sleep_on(Rank &me, uint32_t seen, int64_t nanoseconds) {
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

bool all_arrived(const Segment &s, uint32_t meeting) {
    for (unsigned r = 0; r < s.ranks; ++r) {
        if (static_cast<int32_t>(s.rank[r].arrived.load() - meeting) < 0) return false;
    }
    return true;
}

}  // namespace hearth
