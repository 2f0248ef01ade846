// assert() as CUDA has it: says which thread of which block failed, and ends the process. In place of the C library's
// header, which a program may include again at any point with another NDEBUG; hence no guard.
#include "hearth/thread.h"
#undef assert
#ifdef NDEBUG
#define assert(condition) (static_cast<void>(0))
#else
#define assert(condition) \
    (static_cast<bool>(condition) \
         ? void(0) \
         : hearth_assert_failed(#condition, __FILE__, __LINE__, __func__, hearth::self.thread_idx))
#endif
