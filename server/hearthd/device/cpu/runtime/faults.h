// Handlers of the signals that a kernel can cause. A division is emulated. Every other signal is recorded and passed to
// the previous handler; without one, it ends the process.
#pragma once
#include <stddef.h>

namespace hearth {

// Install the handlers: for divisions, and for all signals if they are recorded. Once per process; later calls do
// nothing.
void watch_divisions();
void watch_faults();

// Ends the process with SIGABRT. Writes `text` to the log and to the crash record.
[[noreturn]] void give_up(const char *text);

// A separate stack for the signal handlers of this thread, because its own stack may have overflowed.
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
// Sets two pipes. Before a fault of a kernel ends the process, a byte is written to `ask`, and one awaited on `answer`;
// by then the reader of standard output has forwarded the output of kernels. The wait is bounded.
void hearth_output(int ask, int answer);
}
