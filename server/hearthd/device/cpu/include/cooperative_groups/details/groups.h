// thread_group, to which all other groups convert, and whose kind is known at run time only; and functions for any
// group.
#pragma once

namespace cooperative_groups {

namespace details {

// The values of get_type().
inline constexpr unsigned coalesced_group_id = 1, grid_group_id = 3, thread_block_id = 4;

// Tag of the constructors that programs do not call: groups are created by this_thread_block() and similar functions,
// and by partitions.
struct made {};

template <class...>
inline constexpr bool never = false;

template <class T>
using plain = std::remove_cv_t<std::remove_reference_t<T>>;

inline unsigned block_size() {
    const dim3 dim = blockDim;
    return dim.x * dim.y * dim.z;
}

}  // namespace details

// The base of the block, the grid, coalesced groups and tiles without a parent. A copy keeps the data that it needs to
// act as the original group.
class thread_group {
public:
    unsigned get_type() const { return type_; }
    unsigned long long size() const;
    unsigned long long num_threads() const { return size(); }
    unsigned long long thread_rank() const;
    void sync() const;
    unsigned hearth_mask() const { return mask_; }

    thread_group(details::made, unsigned type, unsigned mask = 0, unsigned meta_rank = 0, unsigned meta_size = 1)
        : type_(type), mask_(mask), meta_rank_(meta_rank), meta_size_(meta_size) {}

protected:
    unsigned type_;
    unsigned mask_;  // the lanes of a coalesced group or tile
    unsigned meta_rank_, meta_size_;
};

template <class Group>
inline void sync(const Group &group) { group.sync(); }
template <class Group>
inline auto thread_rank(const Group &group) -> decltype(group.thread_rank()) { return group.thread_rank(); }
template <class Group>
inline auto group_size(const Group &group) -> decltype(group.num_threads()) { return group.num_threads(); }

}  // namespace cooperative_groups
