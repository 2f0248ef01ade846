// assert() as in CUDA: prints the block and thread that failed, and ends the process. Replaces the C library's header.
// There is no include guard, because a program may include the header again with another NDEBUG.
#include "hearth/thread.h"
#undef assert
#ifdef NDEBUG
#define assert(condition) (static_cast<void>(0))
#else
#define assert(condition) \
    (static_cast<bool>(condition) \
         ? void(0) \
         : hearth_assert_failed(#condition, __FILE__, __LINE__, __func__, hearth::thread_index()))
#endif
