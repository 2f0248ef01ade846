// Operations of the lanes in a mask, which tiles of up to a warp and coalesced groups share.
#pragma once

namespace cooperative_groups {
namespace details {

// For elements of more than 64 bits: a lane passes the address of a record with the source and destination of the copy.
template <class T>
struct Moved {
    const T *own;
    T *result;
};
template <class T>
inline void finish_move(hearth::WarpLanes &lanes, uint32_t mask) {
    const auto of = [&](unsigned lane) { return reinterpret_cast<const Moved<T> *>(lanes.value[lane]); };
    hearth::each_lane(mask, [&](unsigned lane) {
        const unsigned source = static_cast<unsigned>(lanes.aux[lane]);
        const T *const from = of((mask >> source & 1) != 0 ? source : lane)->own;
        __builtin_memcpy(static_cast<void *>(of(lane)->result), static_cast<const void *>(from), sizeof(T));
    });
}

// Returns the element of the lane `source`, which is below 32; the caller's own if that lane takes no part.
template <class T>
inline T move(unsigned mask, const T &element, unsigned source) {
    static_assert(std::is_trivially_copyable_v<T>, "a shuffle moves trivially copyable types only");
    static_assert(sizeof(T) <= 32, "a shuffle moves types of at most 32 bytes");
    T result = element;
    if constexpr (sizeof(T) <= 8) {
        const uint64_t bits = hearth::warp_collective(mask, hearth::bits_of(element), source, hearth::finish_shuffle);
        __builtin_memcpy(static_cast<void *>(&result), &bits, sizeof result);
    } else {
        const Moved<T> moved{&element, &result};
        hearth::warp_collective(mask, reinterpret_cast<uint64_t>(&moved), source, finish_move<T>);
    }
    return result;
}

inline unsigned bits_below(unsigned lane) { return (1u << lane) - 1; }

// Returns the lane of the member with this rank; 32 if there is none.
inline unsigned lane_of(unsigned mask, unsigned rank) {
    for (; mask != 0; mask &= mask - 1) {
        if (rank-- == 0) return static_cast<unsigned>(__builtin_ctz(mask));
    }
    return 32;
}

// Converts a set of lanes to a set of ranks.
inline unsigned ranks_of(unsigned mask, unsigned lanes) {
    unsigned result = 0, rank = 0;
    for (unsigned rest = mask; rest != 0; rest &= rest - 1, ++rank) {
        result |= (lanes >> __builtin_ctz(rest) & 1) << rank;
    }
    return result;
}

template <class T>
inline constexpr void check_comparable() {
    static_assert(std::is_arithmetic_v<T> || sizeof(T) <= 4, "match_any() and match_all() take numbers");
}

}  // namespace details
}  // namespace cooperative_groups
