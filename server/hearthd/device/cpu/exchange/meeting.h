// Waits for other ranks: bells (futexes) that they ring, meetings of all ranks, and the end of a wait.
#pragma once
#include "callable.h"
#include "segment.h"

namespace hearth {

enum class Progress { nothing, moved, finished, failed };

// Wakes `rank`, after a change that it may be waiting for.
void ring(Segment &s, unsigned rank);
// Fails the present and all later waits of all ranks.
void abort(Segment &s);
// Fails the wait of one rank; the others keep waiting for it, until they are aborted as well.
void leave(Segment &s, unsigned rank);

using Step = Callable<Progress()>;

// Calls `step` until it is finished or has failed; sleeps while there is nothing to do. `timeout_ns` limits the time
// without progress.
Status wait(Segment &s, unsigned rank, int64_t timeout_ns, Step step);

// Returns when all ranks have arrived. Until then, calls `meanwhile` like the step of `wait`.
Status meet(Segment &s, unsigned rank, int64_t timeout_ns, Step meanwhile);

}  // namespace hearth
