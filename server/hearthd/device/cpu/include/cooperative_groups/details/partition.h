// Partitions of a group, and the functions of thread_group, which depend on the group from which it was created.
#pragma once

namespace cooperative_groups {

inline void thread_group::sync() const {
    if (type_ == details::grid_group_id) grid_group::sync();
    else if (type_ == details::thread_block_id) __syncthreads();
    else __syncwarp(mask_);
}
inline unsigned long long thread_group::size() const {
    if (type_ == details::grid_group_id) return grid_group::size();
    if (type_ == details::thread_block_id) return thread_block::size();
    return static_cast<unsigned>(__builtin_popcount(mask_));
}
inline unsigned long long thread_group::thread_rank() const {
    if (type_ == details::grid_group_id) return grid_group::thread_rank();
    if (type_ == details::thread_block_id) return thread_block::thread_rank();
    return static_cast<unsigned>(__builtin_popcount(mask_ & details::bits_below(hearth::lane_id())));
}

namespace details {

template <unsigned Size, class Parent>
inline constexpr void check_partition() {
    constexpr bool is_block = std::is_same_v<Parent, thread_block>;
    static_assert(is_block || (tile_size<Parent> != 0 && tile_size<Parent> <= 1024),
                  "tiled_partition<Size>() divides a thread_block or a tile; others take the size as an argument");
    static_assert(is_block || Size < tile_size<Parent>, "a tile is smaller than the tile that is divided");
}

inline void check_tile_size(unsigned size) {
    const bool valid = size != 0 && size <= 32 && (size & (size - 1)) == 0;
    if (!valid) hearth::trap("tiled_partition() into tiles of no valid size");
}

inline thread_group tiles_of_block(unsigned size) {
    check_tile_size(size);
    const unsigned rank = thread_block::thread_rank(), threads = thread_block::size(), first = rank & ~(size - 1);
    const unsigned members = threads - first < size ? threads - first : size;
    const unsigned mask = (0xffffffffu >> (32 - members)) << (first % 32);
    return thread_group(made{}, coalesced_group_id, mask, rank / size, (threads + size - 1) / size);
}

// Groups of members with consecutive ranks, whatever their lanes are.
inline coalesced_group tiles_of_lanes(const coalesced_group &parent, unsigned size) {
    check_tile_size(size);
    if (parent.size() <= size) return parent;
    const unsigned tile = parent.thread_rank() / size;
    unsigned mask = 0, rank = 0;
    for (unsigned rest = parent.hearth_mask(); rest != 0; rest &= rest - 1, ++rank) {
        if (rank / size == tile) mask |= rest & -rest;
    }
    return coalesced_group(made{}, mask, tile, (parent.size() + size - 1) / size);
}

// Groups without a member do not count: if the predicate is equal in all lanes, there is one group.
inline coalesced_group split(unsigned mask, bool predicate) {
    const unsigned yes = __ballot_sync(mask, predicate);
    if (yes == mask || yes == 0) return coalesced_group(made{}, mask);
    return coalesced_group(made{}, predicate ? yes : mask & ~yes, predicate, 2);
}

// Groups are numbered by their lowest lanes.
template <class Label>
inline coalesced_group split_by_label(unsigned mask, Label label) {
    static_assert(std::is_integral_v<Label> || std::is_pointer_v<Label>, "a label is an integer or a pointer");
    if constexpr (std::is_same_v<Label, bool>) {
        return split(mask, label);
    } else {
        const unsigned same = __match_any_sync(mask, label), leader = static_cast<unsigned>(__builtin_ctz(same));
        const unsigned leaders = __ballot_sync(mask, leader == hearth::lane_id());
        return coalesced_group(made{}, same, static_cast<unsigned>(__builtin_popcount(leaders & bits_below(leader))),
                               static_cast<unsigned>(__builtin_popcount(leaders)));
    }
}

}  // namespace details

template <unsigned Size, class Parent>
inline thread_block_tile<Size, Parent> tiled_partition(const Parent &) {
    details::check_partition<Size, Parent>();
    return thread_block_tile<Size, Parent>(details::made{});
}
inline thread_group tiled_partition(const thread_block &, unsigned size) { return details::tiles_of_block(size); }
inline coalesced_group tiled_partition(const coalesced_group &parent, unsigned size) {
    return details::tiles_of_lanes(parent, size);
}
inline thread_group tiled_partition(const thread_group &parent, unsigned size) {
    if (parent.get_type() != details::coalesced_group_id) return details::tiles_of_block(size);
    return details::tiles_of_lanes(coalesced_group(details::made{}, parent.hearth_mask()), size);
}

inline coalesced_group binary_partition(const coalesced_group &group, bool predicate) {
    return details::split(group.hearth_mask(), predicate);
}
template <unsigned Size, class Parent>
inline coalesced_group binary_partition(const thread_block_tile<Size, Parent> &tile, bool predicate) {
    static_assert(Size <= 32, "binary_partition() divides tiles of at most a warp");
    return details::split(tile.hearth_mask(), predicate);
}
template <class Label>
inline coalesced_group labeled_partition(const coalesced_group &group, Label label) {
    return details::split_by_label(group.hearth_mask(), label);
}
template <class Label, unsigned Size, class Parent>
inline coalesced_group labeled_partition(const thread_block_tile<Size, Parent> &tile, Label label) {
    static_assert(Size <= 32, "labeled_partition() divides tiles of at most a warp");
    return details::split_by_label(tile.hearth_mask(), label);
}

#ifdef _CG_ABI_EXPERIMENTAL
// The names that tiles of more than a warp had before CUDA 12.
namespace experimental {
template <unsigned TileCommunicationSize = 8, unsigned MaxBlockSize = 1024>
struct block_tile_memory : cooperative_groups::block_tile_memory<MaxBlockSize> {};
using cooperative_groups::this_thread_block;
using cooperative_groups::tiled_partition;
}  // namespace experimental
#endif

}  // namespace cooperative_groups
