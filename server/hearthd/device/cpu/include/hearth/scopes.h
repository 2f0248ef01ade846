// What the synchronisation objects of libcu++ have in common.
#pragma once
#include <cuda/atomic>
#include <cuda/std/utility>
#include <hearth/arrivals.h>
