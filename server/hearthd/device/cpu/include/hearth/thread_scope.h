// Thread scopes: which threads an object of libcu++ synchronises. One implementation, for the widest, serves all.
#pragma once

namespace cuda {

enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block, thread_scope_thread };

}  // namespace cuda
