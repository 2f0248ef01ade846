// The signals that a kernel brings on its process: a division is put right, all others are written down and go on to
// the handler that had them before, which is the end of the process where there was none.
#pragma once
#include <stddef.h>

namespace hearth {

// Division from now on, all others where they are written down. Once per process; later calls do nothing.
void watch_divisions();
void watch_faults();

// Ends the process with SIGABRT: `text` goes to the log, and to who looks after the process has died of it.
[[noreturn]] void give_up(const char *text);

// A separate stack for the handlers of this thread: the thread's may be what has overflowed.
class HandlerStack {
public:
    HandlerStack();
    ~HandlerStack();

private:
    void *memory_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace hearth

extern "C" {
// Before a fault of a kernel ends the process, a byte is written to `ask`, and one awaited on `answer`: by then the
// reader of standard output has sent on what kernels printed. Pipes; the wait is bounded.
void hearth_output(int ask, int answer);
}
