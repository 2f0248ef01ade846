// Warp-wide functions. Every one is a meeting of the lanes named in its mask (see hearth_warp_collective): the last
// lane to come computes all results.
#pragma once

namespace hearth {

template <class Fn>
inline void each_lane(uint32_t mask, Fn fn) {
    for (; mask != 0; mask &= mask - 1) fn(static_cast<unsigned>(__builtin_ctz(mask)));
}

inline void finish_shuffle(WarpOp *const *ops, uint32_t mask) {
    each_lane(mask, [=](unsigned lane) {
        const unsigned source = static_cast<unsigned>(ops[lane]->aux);
        ops[lane]->result = ops[(mask >> source & 1) != 0 ? source : lane]->value;
    });
}

inline void finish_ballot(WarpOp *const *ops, uint32_t mask) {
    uint32_t ballot = 0;
    each_lane(mask, [&](unsigned lane) { ballot |= uint32_t(ops[lane]->value != 0) << lane; });
    each_lane(mask, [&](unsigned lane) { ops[lane]->result = ballot, ops[lane]->aux = mask; });
}

inline void finish_match(WarpOp *const *ops, uint32_t mask) {
    each_lane(mask, [=](unsigned lane) {
        uint32_t same = 0;
        each_lane(mask, [&](unsigned other) { same |= uint32_t(ops[other]->value == ops[lane]->value) << other; });
        ops[lane]->result = same;
        ops[lane]->aux = mask;
    });
}

template <class T, class Op>
inline void finish_reduce(WarpOp *const *ops, uint32_t mask) {
    T total{};
    bool first = true;
    each_lane(mask, [&](unsigned lane) {
        T v;
        __builtin_memcpy(&v, &ops[lane]->value, sizeof v);
        total = first ? v : Op()(total, v);
        first = false;
    });
    each_lane(mask, [&](unsigned lane) { __builtin_memcpy(&ops[lane]->result, &total, sizeof total); });
}

template <class T>
inline WarpOp warp_op(const T &value) {
    static_assert(sizeof(T) <= 8, "a lane hands over at most 64 bits");
    WarpOp op{0, 0, 0};
    __builtin_memcpy(&op.value, static_cast<const void *>(&value), sizeof value);
    return op;
}

template <class T>
inline T result_of(const WarpOp &op) {
    T value;
    __builtin_memcpy(static_cast<void *>(&value), &op.result, sizeof value);
    return value;
}

template <class T>
inline T shuffle(uint32_t mask, const T &value, unsigned source) {
    WarpOp op = warp_op(value);
    op.aux = source;
    hearth::warp_collective(mask, &op, finish_shuffle);
    return result_of<T>(op);
}

template <class T, class Op>
inline T warp_reduce(uint32_t mask, T value) {
    WarpOp op = warp_op(value);
    hearth::warp_collective(mask, &op, finish_reduce<T, Op>);
    return result_of<T>(op);
}

inline WarpOp warp_vote(uint32_t mask, int predicate) {
    WarpOp op{predicate != 0, 0, 0};
    hearth::warp_collective(mask, &op, finish_ballot);
    return op;
}

// Shuffles move registers: a type narrower than that goes as the int it is promoted to, a class type as it is.
template <class T>
using Register = std::conditional_t<std::is_arithmetic_v<T> && (sizeof(T) < 4), int, T>;

// Which lanes are converged with this one is told by the place they ask from, hence a real call.
__attribute__((noinline)) inline uint32_t active_here() { return warp_active(__builtin_return_address(0)); }

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

inline void __syncwarp(unsigned mask = 0xffffffffu) {
    hearth::WarpOp op{0, 0, 0};
    hearth::warp_collective(mask, &op, nullptr);
}
#define __activemask() hearth::active_here()
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return static_cast<unsigned>(hearth::warp_vote(mask, predicate).result);
}
inline int __any_sync(unsigned mask, int predicate) { return hearth::warp_vote(mask, predicate).result != 0; }
inline int __all_sync(unsigned mask, int predicate) {
    const hearth::WarpOp op = hearth::warp_vote(mask, predicate);
    return op.result == op.aux;
}
inline int __uni_sync(unsigned mask, int predicate) {
    const hearth::WarpOp op = hearth::warp_vote(mask, predicate);
    return op.result == op.aux || op.result == 0;
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T value) {
    hearth::WarpOp op = hearth::warp_op(value);
    hearth::warp_collective(mask, &op, hearth::finish_match);
    return static_cast<unsigned>(op.result);
}
template <class T>
inline unsigned __match_all_sync(unsigned mask, T value, int *predicate) {
    hearth::WarpOp op = hearth::warp_op(value);
    hearth::warp_collective(mask, &op, hearth::finish_match);
    *predicate = op.result == op.aux;
    return *predicate ? static_cast<unsigned>(op.aux) : 0u;
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
