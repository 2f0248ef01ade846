// Definitions that the synchronisation objects of libcu++ share.
#pragma once
#include <cuda/atomic>
#include <cuda/std/utility>
#include <hearth/arrivals.h>
