#include "grid.h"

#include <stdio.h>

#include "faults.h"

namespace hearth {

void Grid::sync() {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t meeting = meetings_;
    if (++waiting_ == blocks_) {
        waiting_ = 0;
        ++meetings_;
        all_here_.notify_all();
        return;
    }
    check_deadlock();
    all_here_.wait(lock, [&] { return meetings_ != meeting; });
}

void Grid::leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++gone_;
    check_deadlock();
}

// On a GPU such a grid hangs until its process is ended; here the deadlock is detected immediately.
void Grid::check_deadlock() const {
    if (waiting_ == 0 || gone_ == 0 || waiting_ + gone_ != blocks_) return;
    char text[128];
    snprintf(text, sizeof text,
             "hearth: deadlock: %llu of %llu blocks wait in grid.sync(), and the others have returned without it",
             static_cast<unsigned long long>(waiting_), static_cast<unsigned long long>(blocks_));
    give_up(text);
}

}  // namespace hearth
