// The group of the threads of a grid. It can synchronise in a cooperative launch, whose blocks are all resident.
#pragma once

namespace cooperative_groups {

class grid_group : public thread_group {
public:
    using arrival_token = unsigned;

    explicit grid_group(details::made) : thread_group(details::made{}, details::grid_group_id) {}

    static bool is_valid() { return hearth_tls.grid != nullptr; }
    static void sync() { hearth::grid_sync(); }
    // The block's threads meet here, those of all blocks in barrier_wait().
    arrival_token barrier_arrive() const {
        if (!is_valid()) hearth::trap("grid.barrier_arrive() in a launch that is not cooperative");
        __syncthreads();
        return 0;
    }
    void barrier_wait(arrival_token &&) const { hearth::grid_sync(); }

    static unsigned long long num_blocks() { return linear(gridDim); }
    static unsigned long long num_threads() { return num_blocks() * details::block_size(); }
    static unsigned long long size() { return num_threads(); }
    static unsigned long long block_rank() {
        const dim3 block = blockIdx, grid = gridDim;
        return block.x + grid.x * (block.y + static_cast<unsigned long long>(grid.y) * block.z);
    }
    static unsigned long long thread_rank() { return block_rank() * details::block_size() + hearth::thread_rank(); }
    static dim3 dim_blocks() { return gridDim; }
    static dim3 group_dim() { return dim_blocks(); }
    static dim3 block_index() { return blockIdx; }
    static dim3 dim_threads() {
        const dim3 block = blockDim, grid = gridDim;
        return dim3(grid.x * block.x, grid.y * block.y, grid.z * block.z);
    }
    static dim3 thread_index() {
        const dim3 block = blockIdx, dim = blockDim;
        const uint3 thread = threadIdx;
        return dim3(block.x * dim.x + thread.x, block.y * dim.y + thread.y, block.z * dim.z + thread.z);
    }

    template <class T = void>
    static dim3 dim_clusters() { return no_clusters<dim3, T>(); }
    template <class T = void>
    static dim3 cluster_index() { return no_clusters<dim3, T>(); }
    template <class T = void>
    static unsigned long long num_clusters() { return no_clusters<unsigned long long, T>(); }
    template <class T = void>
    static unsigned long long cluster_rank() { return no_clusters<unsigned long long, T>(); }

private:
    static unsigned long long linear(const dim3 &dim) {
        return static_cast<unsigned long long>(dim.x) * dim.y * dim.z;
    }
    template <class Result, class T>
    static Result no_clusters() {
        static_assert(details::never<T>, "HEARTH-UNSUPPORTED: thread block clusters");
        return Result();
    }
};

inline grid_group this_grid() { return grid_group(details::made{}); }

}  // namespace cooperative_groups
