// Integer division as on a GPU: division by zero, and of the lowest number by -1, has a result and is no fault.
#pragma once

namespace hearth {

// True while this thread runs a kernel; divisions are emulated only then.
extern thread_local bool in_kernel __attribute__((tls_model("initial-exec")));

// To be called in the handler of a SIGFPE with FPE_INTDIV. Sets the result of the division in `context`, a ucontext_t,
// and returns true if execution can continue after it.
bool divide_by_definition(void *context);

}  // namespace hearth
