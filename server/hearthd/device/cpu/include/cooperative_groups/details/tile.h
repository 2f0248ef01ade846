// Tiles: groups of a power of two of consecutive threads, known when the program is compiled.
#pragma once

namespace cooperative_groups {

template <unsigned Size, class Parent = void>
class thread_block_tile;

namespace details {

// A tile of up to a warp. Source lanes follow the PTX definition of shfl: a lane whose source is out of bounds keeps
// its own element, and only the lowest five bits of a distance are used.
template <unsigned Size>
class warp_tile : public tile_ranks<Size> {
    static_assert(Size != 0 && (Size & (Size - 1)) == 0, "the size of a tile is a power of two");

public:
    static unsigned hearth_mask() { return (whole_warp >> (32 - Size)) << first_lane(); }
    static void sync() { __syncwarp(hearth_mask()); }

    template <class T>
    plain<T> shfl(T &&element, int rank) const {
        return move(element, first_lane() | (static_cast<unsigned>(rank) & (Size - 1)));
    }
    template <class T>
    plain<T> shfl_up(T &&element, unsigned delta) const {
        const unsigned lane = hearth::lane_id(), back = delta % 32;
        return move(element, lane % Size >= back ? lane - back : lane);
    }
    template <class T>
    plain<T> shfl_down(T &&element, unsigned delta) const {
        const unsigned lane = hearth::lane_id(), ahead = delta % 32;
        return move(element, lane % Size + ahead < Size ? lane + ahead : lane);
    }
    template <class T>
    plain<T> shfl_xor(T &&element, unsigned lane_mask) const {
        const unsigned lane = hearth::lane_id(), source = lane ^ (lane_mask % 32);
        return move(element, source <= (lane | (Size - 1)) ? source : lane);
    }
    int any(int predicate) const { return __ballot_sync(hearth_mask(), predicate) != 0; }
    int all(int predicate) const { return __ballot_sync(hearth_mask(), predicate) == hearth_mask(); }
    unsigned ballot(int predicate) const { return __ballot_sync(hearth_mask(), predicate) >> first_lane(); }
    template <class T>
    unsigned match_any(T value) const {
        check_comparable<T>();
        return __match_any_sync(hearth_mask(), value) >> first_lane();
    }
    template <class T>
    unsigned match_all(T value, int &predicate) const {
        check_comparable<T>();
        return __match_all_sync(hearth_mask(), value, &predicate) >> first_lane();
    }

private:
    static unsigned first_lane() { return hearth::lane_id() & ~(Size - 1); }
    template <class T>
    static plain<T> move(T &&element, unsigned lane) {
        return details::move<plain<T>>(hearth_mask(), element, lane);
    }
};

template <unsigned Size>
using tile_of_size = std::conditional_t<(Size <= 32), warp_tile<Size>, wide_tile<Size>>;

// A tile that stores its position in its parent, of any kind, as numbers.
template <unsigned Size, bool Wide = (Size > 32)>
class placed_tile : public warp_tile<Size>, public thread_group {
public:
    placed_tile(unsigned meta_rank, unsigned meta_size)
        : thread_group(made{}, coalesced_group_id, warp_tile<Size>::hearth_mask(), meta_rank, meta_size) {}
    using warp_tile<Size>::hearth_mask;
    using warp_tile<Size>::sync;
    using warp_tile<Size>::thread_rank;
    using warp_tile<Size>::num_threads;
    using warp_tile<Size>::size;
    unsigned meta_group_rank() const { return meta_rank_; }
    unsigned meta_group_size() const { return meta_size_; }
};

template <unsigned Size>
class placed_tile<Size, true> : public wide_tile<Size> {
public:
    placed_tile(unsigned meta_rank, unsigned meta_size) : meta_rank_(meta_rank), meta_size_(meta_size) {}
    unsigned meta_group_rank() const { return meta_rank_; }
    unsigned meta_group_size() const { return meta_size_; }

private:
    unsigned meta_rank_, meta_size_;
};

// The size of a tile; 0 for a coalesced group. Not defined for other groups.
template <class Group>
inline constexpr unsigned tile_size = ~0u;
template <unsigned Size, class Parent>
inline constexpr unsigned tile_size<thread_block_tile<Size, Parent>> = Size;
template <>
inline constexpr unsigned tile_size<coalesced_group> = 0;

}  // namespace details

template <unsigned Size, class Parent>
class thread_block_tile : public details::tile_of_size<Size> {
public:
    explicit thread_block_tile(details::made) {}
    operator thread_block_tile<Size, void>() const {
        return thread_block_tile<Size, void>(details::made{}, meta_group_rank(), meta_group_size());
    }
    static unsigned meta_group_rank() { return Parent::thread_rank() / Size; }
    static unsigned meta_group_size() { return (Parent::size() + Size - 1) / Size; }
};

template <unsigned Size>
class thread_block_tile<Size, void> : public details::placed_tile<Size> {
public:
    thread_block_tile(details::made, unsigned meta_rank, unsigned meta_size)
        : details::placed_tile<Size>(meta_rank, meta_size) {}
};

inline thread_block_tile<1, void> this_thread() { return thread_block_tile<1, void>(details::made{}, 0, 1); }

}  // namespace cooperative_groups
