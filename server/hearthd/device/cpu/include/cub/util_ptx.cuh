// CUB's wrappers of single instructions.
#pragma once
#include "../hearth/macros_begin.h"
#include <cub/util_type.cuh>

namespace cub {
namespace hearth_details {

// Shuffles a value of any size, in pieces.
template <class T, class Exchange>
inline T in_pieces(const T &input, Exchange exchange) {
    T result;
    for (size_t at = 0; at < sizeof(T); at += 8) {
        unsigned long long piece = 0;
        const size_t bytes = sizeof(T) - at < 8 ? sizeof(T) - at : 8;
        __builtin_memcpy(&piece, reinterpret_cast<const char *>(&input) + at, bytes);
        piece = exchange(piece);
        __builtin_memcpy(reinterpret_cast<char *>(&result) + at, &piece, bytes);
    }
    return result;
}

}  // namespace hearth_details

inline unsigned LaneId() { return hearth::lane_id(); }
inline unsigned WarpId() { return hearth::thread_rank() / 32; }
inline int RowMajorTid(int dim_x, int dim_y, int dim_z) {
    return (dim_z == 1 ? 0 : static_cast<int>(threadIdx.z) * dim_x * dim_y) +
           (dim_y == 1 ? 0 : static_cast<int>(threadIdx.y) * dim_x) + static_cast<int>(threadIdx.x);
}
template <int LogicalThreads>
inline unsigned WarpMask(unsigned warp) {
    using Lanes = hearth::LogicalWarp<LogicalThreads>;
    return Lanes::is_regular && LogicalThreads != 32 ? Lanes::low << (warp * LogicalThreads) : Lanes::low;
}
inline void CTA_SYNC() { __syncthreads(); }
inline void WARP_SYNC(unsigned mask) { __syncwarp(mask); }

// A lane before `first` (after `last`, outside the logical warp) is no source; the result is then the caller's own
// value.
template <int LogicalThreads, class T>
inline T ShuffleUp(T input, int offset, int first, unsigned mask) {
    const int lane = static_cast<int>(hearth::lane_id()), rank = lane % LogicalThreads;
    const unsigned source = static_cast<unsigned>(rank - offset >= first ? lane - offset : lane);
    return hearth_details::in_pieces(input, [&](auto piece) { return hearth::shuffle(mask, piece, source); });
}
template <int LogicalThreads, class T>
inline T ShuffleDown(T input, int offset, int last, unsigned mask) {
    const int lane = static_cast<int>(hearth::lane_id()), rank = lane % LogicalThreads;
    const unsigned source = static_cast<unsigned>(rank + offset <= last ? lane + offset : lane);
    return hearth_details::in_pieces(input, [&](auto piece) { return hearth::shuffle(mask, piece, source); });
}
template <int LogicalThreads, class T>
inline T ShuffleIndex(T input, int source, unsigned mask) {
    return hearth_details::in_pieces(
        input, [&](auto piece) { return __shfl_sync(mask, piece, source, LogicalThreads); });
}
// The lanes whose labels agree in the low bits.
template <int LabelBits>
inline unsigned MatchAny(unsigned label) {
    return __match_any_sync(__activemask(), label & (LabelBits >= 32 ? ~0u : (1u << (LabelBits % 32)) - 1));
}

}  // namespace cub
#include "../hearth/macros_end.h"
