// The common part of cooperative groups, https://docs.nvidia.com/cuda/cuda-c-programming-guide/ (Cooperative Groups).
// Groups up to a warp are a mask of lanes; the block is the block's barrier. A grid synchronises where its blocks are
// all there at once: in a cooperative launch.
#pragma once

namespace cooperative_groups {

namespace details {

// What tiles and coalesced groups share. A member's rank is its place among the set bits of the mask.
class lanes {
public:
    unsigned size() const { return static_cast<unsigned>(__builtin_popcount(mask_)); }
    unsigned num_threads() const { return size(); }
    unsigned thread_rank() const { return static_cast<unsigned>(__builtin_popcount(mask_ & ((1u << hearth::lane_id()) - 1))); }
    void sync() const { __syncwarp(mask_); }
    int any(int predicate) const { return __any_sync(mask_, predicate); }
    int all(int predicate) const { return __all_sync(mask_, predicate); }
    unsigned ballot(int predicate) const { return packed(__ballot_sync(mask_, predicate)); }
    template <class T>
    unsigned match_any(T value) const { return packed(__match_any_sync(mask_, value)); }
    template <class T>
    unsigned match_all(T value, int &predicate) const { return packed(__match_all_sync(mask_, value, &predicate)); }
    template <class T>
    T shfl(T value, int source) const { return exchange(value, static_cast<unsigned>(source) % size()); }
    template <class T>
    T shfl_up(T value, unsigned delta) const {
        const unsigned rank = thread_rank();
        return exchange(value, rank >= delta ? rank - delta : rank);
    }
    template <class T>
    T shfl_down(T value, unsigned delta) const {
        const unsigned rank = thread_rank();
        return exchange(value, rank + delta < size() ? rank + delta : rank);
    }
    template <class T>
    T shfl_xor(T value, unsigned mask) const {
        const unsigned rank = thread_rank();
        return exchange(value, (rank ^ mask) < size() ? rank ^ mask : rank);
    }
    unsigned hearth_mask() const { return mask_; }

protected:
    explicit lanes(unsigned mask) : mask_(mask) {}
    // The lane that holds a rank.
    unsigned lane_of(unsigned rank) const {
        unsigned rest = mask_;
        while (rank-- != 0) rest &= rest - 1;
        return rest == 0 ? hearth::lane_id() : static_cast<unsigned>(__builtin_ctz(rest));
    }
    unsigned packed(unsigned bits) const {
        unsigned result = 0, place = 0;
        for (unsigned rest = mask_; rest != 0; rest &= rest - 1, ++place) result |= (bits >> __builtin_ctz(rest) & 1) << place;
        return result;
    }
    template <class T>
    T exchange(const T &value, unsigned rank) const {
        const unsigned source = lane_of(rank);
        if constexpr (sizeof(T) <= 8) {
            return hearth::shuffle<T>(mask_, value, source);
        } else {  // in pieces, as CUDA does for types of any size
            T result;
            for (size_t at = 0; at < sizeof(T); at += 8) {
                unsigned long long piece = 0;
                const size_t bytes = sizeof(T) - at < 8 ? sizeof(T) - at : 8;
                __builtin_memcpy(&piece, reinterpret_cast<const char *>(&value) + at, bytes);
                piece = hearth::shuffle(mask_, piece, source);
                __builtin_memcpy(reinterpret_cast<char *>(&result) + at, &piece, bytes);
            }
            return result;
        }
    }
    unsigned mask_;
};

}  // namespace details

class thread_block {
public:
    static void sync() { __syncthreads(); }
    static void barrier_sync() { __syncthreads(); }
    static unsigned thread_rank() { return hearth::thread_rank(); }
    static unsigned size() { return hearth_tls.block_dim.x * hearth_tls.block_dim.y * hearth_tls.block_dim.z; }
    static unsigned num_threads() { return size(); }
    static dim3 thread_index() { return hearth::thread_idx(); }
    static dim3 group_index() { return hearth::dim3_of(hearth_tls.block_idx); }
    static dim3 group_dim() { return hearth::block_dim(); }
    static dim3 dim_threads() { return hearth::block_dim(); }
};
inline thread_block this_thread_block() { return {}; }

class grid_group {
public:
    static void sync() { hearth::grid_sync(); }
    static bool is_valid() { return hearth_tls.grid != nullptr; }
    static unsigned long long thread_rank() { return block_rank() * thread_block::size() + thread_block::thread_rank(); }
    static unsigned long long size() { return num_blocks() * thread_block::size(); }
    static unsigned long long num_threads() { return size(); }
    static unsigned long long num_blocks() {
        return static_cast<unsigned long long>(hearth_tls.grid_dim.x) * hearth_tls.grid_dim.y * hearth_tls.grid_dim.z;
    }
    static unsigned long long block_rank() {
        const hearth::Index b = hearth_tls.block_idx, g = hearth_tls.grid_dim;
        return b.x + static_cast<unsigned long long>(g.x) * (b.y + static_cast<unsigned long long>(g.y) * b.z);
    }
    static dim3 group_dim() { return hearth::grid_dim(); }
    static dim3 dim_blocks() { return hearth::grid_dim(); }
    static dim3 block_index() { return hearth::dim3_of(hearth_tls.block_idx); }
};
inline grid_group this_grid() { return {}; }

class coalesced_group : public details::lanes {
public:
    explicit coalesced_group(unsigned mask) : lanes(mask) {}
    unsigned meta_group_rank() const { return 0; }
    unsigned meta_group_size() const { return 1; }
};
// Always inlined: the lanes that are converged are told by where they ask from.
__attribute__((always_inline)) inline coalesced_group coalesced_threads() { return coalesced_group(__activemask()); }

template <unsigned Size, class Parent = void>
class thread_block_tile : public details::lanes {
    static_assert(Size != 0 && (Size & (Size - 1)) == 0, "the size of a tile is a power of two");
    static_assert(Size <= 32, "HEARTH-UNSUPPORTED: tiles of more than a warp");

public:
    thread_block_tile() : lanes(mask_here()) {}
    template <class Other>
    thread_block_tile(const thread_block_tile<Size, Other> &) : lanes(mask_here()) {}
    static constexpr unsigned size() { return Size; }
    static constexpr unsigned num_threads() { return Size; }
    static unsigned thread_rank() { return hearth::thread_rank() % Size; }
    static unsigned meta_group_rank() { return hearth::thread_rank() / Size; }
    static unsigned meta_group_size() { return (thread_block::size() + Size - 1) / Size; }

    // In a tile a rank is the lane's number within it, whether or not the lanes before it are still there.
    template <class T>
    T shfl(T value, int source) const { return whole(value, static_cast<unsigned>(source) % Size); }
    template <class T>
    T shfl_up(T value, unsigned delta) const {
        return whole(value, thread_rank() >= delta ? thread_rank() - delta : thread_rank());
    }
    template <class T>
    T shfl_down(T value, unsigned delta) const {
        return whole(value, thread_rank() + delta < Size ? thread_rank() + delta : thread_rank());
    }
    template <class T>
    T shfl_xor(T value, unsigned mask) const { return whole(value, (thread_rank() ^ mask) % Size); }
    unsigned ballot(int predicate) const { return __ballot_sync(mask_, predicate) >> base() & low(); }
    template <class T>
    unsigned match_any(T value) const { return __match_any_sync(mask_, value) >> base() & low(); }

private:
    static constexpr unsigned low() { return Size == 32 ? 0xffffffffu : (1u << (Size % 32)) - 1; }
    static unsigned base() { return hearth::lane_id() & ~(Size - 1); }
    static unsigned mask_here() { return low() << base(); }
    template <class T>
    T whole(const T &value, unsigned rank) const { return this->exchange(value, rank); }
};

// A group whose kind is not known: what functions take that accept any.
class thread_group : public details::lanes {
public:
    thread_group(thread_block) : lanes(0), is_block_(true) {}
    thread_group(const coalesced_group &group) : lanes(group.hearth_mask()) {}
    template <unsigned Size, class Parent>
    thread_group(const thread_block_tile<Size, Parent> &group) : lanes(group.hearth_mask()) {}
    explicit thread_group(unsigned mask) : lanes(mask) {}
    unsigned size() const { return is_block_ ? thread_block::size() : lanes::size(); }
    unsigned num_threads() const { return size(); }
    unsigned thread_rank() const { return is_block_ ? thread_block::thread_rank() : lanes::thread_rank(); }
    void sync() const {
        if (is_block_) thread_block::sync();
        else lanes::sync();
    }

private:
    bool is_block_ = false;
};

template <unsigned Size, class Parent>
inline thread_block_tile<Size, Parent> tiled_partition(const Parent &) {
    return {};
}
inline thread_group tiled_partition(const thread_group &, unsigned size) {
    const unsigned low = size >= 32 ? 0xffffffffu : (1u << size) - 1;
    return thread_group(low << (hearth::lane_id() & ~(size - 1)));
}
template <class Group>
inline coalesced_group binary_partition(const Group &group, bool predicate) {
    const unsigned yes = __ballot_sync(group.hearth_mask(), predicate);
    return coalesced_group(predicate ? yes : group.hearth_mask() & ~yes);
}
template <class Group, class Label>
inline coalesced_group labeled_partition(const Group &group, Label label) {
    return coalesced_group(__match_any_sync(group.hearth_mask(), label));
}

template <class Group>
inline void sync(const Group &group) { group.sync(); }
template <class Group>
inline auto thread_rank(const Group &group) { return group.thread_rank(); }
template <class Group>
inline auto group_size(const Group &group) { return group.size(); }

template <class Group, class Fn>
inline void invoke_one(const Group &group, Fn fn) {
    if (group.thread_rank() == 0) fn();
}

}  // namespace cooperative_groups
