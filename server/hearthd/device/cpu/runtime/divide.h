// Integer division as on a GPU: by zero, and of the lowest number by -1, it has a result and is no fault.
#pragma once

namespace hearth {

// Whether this thread runs a kernel: only there is a division put right.
extern thread_local bool in_kernel __attribute__((tls_model("initial-exec")));

// In the handler of a SIGFPE with FPE_INTDIV: whether `context`, a ucontext_t, continues behind the division.
bool divide_by_definition(void *context);

}  // namespace hearth
