// Cooperative groups: groups of threads, their partitions, and operations of all threads of a group. Reductions, scans
// and copies have separate headers. https://docs.nvidia.com/cuda/cuda-programming-guide/ (Cooperative Groups)
#pragma once
#include "hearth/macros_begin.h"

#include "cooperative_groups/details/groups.h"
#include "cooperative_groups/details/lanes.h"
#include "cooperative_groups/details/block.h"
#include "cooperative_groups/details/grid.h"
#include "cooperative_groups/details/coalesced.h"
#include "cooperative_groups/details/wide_tile.h"
#include "cooperative_groups/details/tile.h"
#include "cooperative_groups/details/partition.h"
#include "cooperative_groups/details/invoke.h"
#include "hearth/macros_end.h"
