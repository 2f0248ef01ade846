// Warp-wide functions. Every one is a meeting of the lanes named in its mask (see hearth_warp_collective): the last
// lane to arrive computes all results.
#pragma once

namespace hearth {

template <class Fn>
inline void each_lane(uint32_t mask, Fn fn) {
    for (; mask != 0; mask &= mask - 1) fn(static_cast<unsigned>(__builtin_ctz(mask)));
}

inline void finish_sync(WarpLanes &, uint32_t) {}

// `aux` is the source lane.
inline void finish_shuffle(WarpLanes &lanes, uint32_t mask) {
    if (mask == 0xffffffffu) {
        for (unsigned lane = 0; lane < 32; ++lane) lanes.result[lane] = lanes.value[lanes.aux[lane] & 31];
        return;
    }
    each_lane(mask, [&](unsigned lane) {
        const unsigned source = static_cast<unsigned>(lanes.aux[lane]);
        lanes.result[lane] = lanes.value[(mask >> source & 1) != 0 ? source : lane];
    });
}

// The result holds the lanes that voted yes, and above them those that took part.
inline void finish_ballot(WarpLanes &lanes, uint32_t mask) {
    uint64_t ballot = uint64_t{mask} << 32;
    each_lane(mask, [&](unsigned lane) { ballot |= uint64_t(lanes.value[lane] != 0) << lane; });
    each_lane(mask, [&](unsigned lane) { lanes.result[lane] = ballot; });
}

// The result holds the lanes with the same value, and above them those that took part.
inline void finish_match(WarpLanes &lanes, uint32_t mask) {
    each_lane(mask, [&](unsigned lane) {
        uint64_t same = uint64_t{mask} << 32;
        each_lane(mask, [&](unsigned other) { same |= uint64_t(lanes.value[other] == lanes.value[lane]) << other; });
        lanes.result[lane] = same;
    });
}

template <class T>
inline uint64_t bits_of(const T &value) {
    static_assert(sizeof(T) <= 8, "a lane hands over at most 64 bits");
    uint64_t bits = 0;
    __builtin_memcpy(&bits, static_cast<const void *>(&value), sizeof value);
    return bits;
}

template <class T>
inline T value_of(uint64_t bits) {
    T value;
    __builtin_memcpy(static_cast<void *>(&value), &bits, sizeof value);
    return value;
}

template <class T, class Op>
inline void finish_reduce(WarpLanes &lanes, uint32_t mask) {
    T total{};
    bool first = true;
    each_lane(mask, [&](unsigned lane) {
        const T v = value_of<T>(lanes.value[lane]);
        total = first ? v : Op()(total, v);
        first = false;
    });
    each_lane(mask, [&](unsigned lane) { lanes.result[lane] = bits_of(total); });
}

template <class T>
inline T shuffle(uint32_t mask, const T &value, unsigned source) {
    return value_of<T>(warp_collective(mask, bits_of(value), source, finish_shuffle));
}

template <class T, class Op>
inline T warp_reduce(uint32_t mask, T value) {
    return value_of<T>(warp_collective(mask, bits_of(value), 0, finish_reduce<T, Op>));
}

// The lanes of an operation that voted yes, or hold the same value; and those that took part.
struct Lanes {
    uint32_t yes, all;
};
inline Lanes lanes_of(uint64_t result) { return {static_cast<uint32_t>(result), static_cast<uint32_t>(result >> 32)}; }

inline Lanes warp_vote(uint32_t mask, int predicate) {
    return lanes_of(warp_collective(mask, predicate != 0, 0, finish_ballot));
}
template <class T>
inline Lanes warp_match(uint32_t mask, const T &value) {
    return lanes_of(warp_collective(mask, bits_of(value), 0, finish_match));
}

// Shuffles move registers: a narrower type is passed as the int to which it is promoted, a class type unchanged.
template <class T>
using Register = std::conditional_t<std::is_arithmetic_v<T> && (sizeof(T) < 4), int, T>;

// The call site determines which lanes are converged with this one, hence a real call.
// The compiler may merge equal ends of two branches; the number distinguishes the call sites.
__attribute__((noinline)) inline uint32_t active_here(unsigned number) {
    const uint64_t site = reinterpret_cast<uint64_t>(__builtin_return_address(0)) ^ static_cast<uint64_t>(number) << 48;
    return warp_active(reinterpret_cast<const void *>(site));
}

struct Plus { template <class T> T operator()(T a, T b) const { return a + b; } };
struct Least { template <class T> T operator()(T a, T b) const { return b < a ? b : a; } };
struct Greatest { template <class T> T operator()(T a, T b) const { return a < b ? b : a; } };
struct BitAnd { template <class T> T operator()(T a, T b) const { return a & b; } };
struct BitOr { template <class T> T operator()(T a, T b) const { return a | b; } };
struct BitXor { template <class T> T operator()(T a, T b) const { return a ^ b; } };

}  // namespace hearth

// Source lanes and their bounds follow the PTX definition of shfl: a lane whose source is out of bounds keeps its own.
template <class T>
inline hearth::Register<T> __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    const unsigned lane = hearth::lane_id(), w = static_cast<unsigned>(width);
    return hearth::shuffle<hearth::Register<T>>(mask, value, (lane & ~(w - 1)) | (static_cast<unsigned>(source) & (w - 1)));
}
template <class T>
inline hearth::Register<T> __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    const unsigned lane = hearth::lane_id(), within = lane & (static_cast<unsigned>(width) - 1);
    return hearth::shuffle<hearth::Register<T>>(mask, value, within >= delta ? lane - delta : lane);
}
template <class T>
inline hearth::Register<T> __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    const unsigned lane = hearth::lane_id(), w = static_cast<unsigned>(width), within = lane & (w - 1);
    return hearth::shuffle<hearth::Register<T>>(mask, value, delta < w - within ? lane + delta : lane);
}
template <class T>
inline hearth::Register<T> __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
    const unsigned lane = hearth::lane_id(), w = static_cast<unsigned>(width);
    const unsigned source = lane ^ (static_cast<unsigned>(lane_mask) & 31);
    return hearth::shuffle<hearth::Register<T>>(mask, value, source <= (lane | (w - 1)) ? source : lane);
}

inline void __syncwarp(unsigned mask = 0xffffffffu) { hearth::warp_collective(mask, 0, 0, hearth::finish_sync); }
#define __activemask() hearth::active_here(__COUNTER__)
inline unsigned __ballot_sync(unsigned mask, int predicate) { return hearth::warp_vote(mask, predicate).yes; }
inline int __any_sync(unsigned mask, int predicate) { return hearth::warp_vote(mask, predicate).yes != 0; }
inline int __all_sync(unsigned mask, int predicate) {
    const hearth::Lanes lanes = hearth::warp_vote(mask, predicate);
    return lanes.yes == lanes.all;
}
inline int __uni_sync(unsigned mask, int predicate) {
    const hearth::Lanes lanes = hearth::warp_vote(mask, predicate);
    return lanes.yes == lanes.all || lanes.yes == 0;
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T value) { return hearth::warp_match(mask, value).yes; }
template <class T>
inline unsigned __match_all_sync(unsigned mask, T value, int *predicate) {
    const hearth::Lanes lanes = hearth::warp_match(mask, value);
    *predicate = lanes.yes == lanes.all;
    return *predicate ? lanes.all : 0u;
}

inline unsigned __reduce_add_sync(unsigned mask, unsigned v) { return hearth::warp_reduce<unsigned, hearth::Plus>(mask, v); }
inline int __reduce_add_sync(unsigned mask, int v) {
    return static_cast<int>(hearth::warp_reduce<unsigned, hearth::Plus>(mask, static_cast<unsigned>(v)));
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned v) { return hearth::warp_reduce<unsigned, hearth::Least>(mask, v); }
inline int __reduce_min_sync(unsigned mask, int v) { return hearth::warp_reduce<int, hearth::Least>(mask, v); }
inline unsigned __reduce_max_sync(unsigned mask, unsigned v) {
    return hearth::warp_reduce<unsigned, hearth::Greatest>(mask, v);
}
inline int __reduce_max_sync(unsigned mask, int v) { return hearth::warp_reduce<int, hearth::Greatest>(mask, v); }
inline unsigned __reduce_and_sync(unsigned mask, unsigned v) { return hearth::warp_reduce<unsigned, hearth::BitAnd>(mask, v); }
inline unsigned __reduce_or_sync(unsigned mask, unsigned v) { return hearth::warp_reduce<unsigned, hearth::BitOr>(mask, v); }
inline unsigned __reduce_xor_sync(unsigned mask, unsigned v) { return hearth::warp_reduce<unsigned, hearth::BitXor>(mask, v); }
