// Waiting for other ranks: bells that they ring, meetings of all of them, and what ends it.
#pragma once
#include "callable.h"
#include "segment.h"

namespace hearth {

enum class Progress { nothing, moved, finished, failed };

// After a change that `rank` may be waiting for.
void ring(Segment &s, unsigned rank);
// What all ranks wait for fails now, and all that comes later.
void abort(Segment &s);
// Fails the wait of one rank; the others keep waiting for it, until they are aborted as well.
void leave(Segment &s, unsigned rank);

using Step = Callable<Progress()>;

// Calls `step` until it is finished or has failed; sleeps while there is nothing to do. `timeout_ns` is for how long a
// rank waits at most without anything having moved.
Status wait(Segment &s, unsigned rank, int64_t timeout_ns, Step step);

// Returns when all ranks have come to it; `meanwhile` is what this rank gets on with until then, as `wait`'s step.
Status meet(Segment &s, unsigned rank, int64_t timeout_ns, Step meanwhile);

}  // namespace hearth
