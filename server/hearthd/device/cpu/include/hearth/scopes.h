// What the synchronisation objects of libcu++ have in common.
#pragma once
#if __has_include(<cuda/atomic>)
#include <cuda/atomic>
#else
#include <hearth/thread_scope.h>
#endif
#include <cuda/std/utility>
#include <hearth/arrivals.h>
