// The blocks of a cooperative launch, all resident at the same time, each on a separate thread, and their barrier.
#pragma once
#include <stdint.h>

#include <condition_variable>
#include <mutex>

namespace hearth {

class Grid {
public:
    explicit Grid(uint64_t blocks) : blocks_(blocks) {}

    // Called by a block all of whose threads have arrived; returns when every block has called it.
    void sync();
    // Called by a block that has run to its end.
    void leave();

private:
    void check_deadlock() const;

    const uint64_t blocks_;
    std::mutex mutex_;
    std::condition_variable all_here_;
    uint64_t waiting_ = 0, gone_ = 0, meetings_ = 0;
};

}  // namespace hearth
