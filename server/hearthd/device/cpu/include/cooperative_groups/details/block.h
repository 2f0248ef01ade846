// The group of the threads of a block.
#pragma once

namespace cooperative_groups {

// Memory that tiles larger than a warp need on older GPUs. Not used here; see wide_tile.h.
template <unsigned MaxBlockSize = 1024>
struct alignas(8) block_tile_memory {
private:
    char unused_[8];
};

class thread_block : public thread_group {
public:
    struct arrival_token {};

    explicit thread_block(details::made) : thread_group(details::made{}, details::thread_block_id) {}

    static void sync() { __syncthreads(); }
    // All threads meet in barrier_wait(), as on GPUs.
    arrival_token barrier_arrive() const { return {}; }
    void barrier_wait(arrival_token &&) const { __syncthreads(); }

    static unsigned thread_rank() { return hearth::thread_rank(); }
    static unsigned num_threads() { return details::block_size(); }
    static unsigned size() { return num_threads(); }
    static dim3 thread_index() { return threadIdx; }
    static dim3 group_index() { return blockIdx; }
    static dim3 dim_threads() { return blockDim; }
    static dim3 group_dim() { return dim_threads(); }
};

inline thread_block this_thread_block() { return thread_block(details::made{}); }
template <unsigned MaxBlockSize>
inline thread_block this_thread_block(block_tile_memory<MaxBlockSize> &) {
    return this_thread_block();
}

}  // namespace cooperative_groups
