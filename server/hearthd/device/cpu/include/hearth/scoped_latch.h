// cuda::latch, cuda::counting_semaphore and cuda::binary_semaphore, with a scope and, in cuda::std, without.
#pragma once

#include <cstddef>

#include "scoped_atomic.h"

namespace hearth {

class Latch {
public:
    constexpr explicit Latch(ptrdiff_t expected) : left_(expected) {}
    Latch(const Latch &) = delete;
    Latch &operator=(const Latch &) = delete;
    void count_down(ptrdiff_t by = 1) { left_.fetch_sub(by); }
    bool try_wait() const { return left_.load() == 0; }
    void wait() const {
        while (!try_wait()) relax();
    }
    void arrive_and_wait(ptrdiff_t by = 1) {
        count_down(by);
        wait();
    }
    static constexpr ptrdiff_t max() { return std::numeric_limits<ptrdiff_t>::max(); }

private:
    AtomicObject<ptrdiff_t> left_;
};

template <ptrdiff_t Most>
class Semaphore {
public:
    constexpr explicit Semaphore(ptrdiff_t count) : count_(count) {}
    Semaphore(const Semaphore &) = delete;
    Semaphore &operator=(const Semaphore &) = delete;
    void release(ptrdiff_t by = 1) { count_.fetch_add(by); }
    bool try_acquire() {
        ptrdiff_t seen = count_.load();
        while (seen > 0) {
            if (count_.compare_exchange_weak(seen, seen - 1)) return true;
        }
        return false;
    }
    void acquire() {
        while (!try_acquire()) relax();
    }
    static constexpr ptrdiff_t max() { return Most; }

private:
    AtomicObject<ptrdiff_t> count_;
};

inline constexpr ptrdiff_t most_permits = std::numeric_limits<int>::max();

}  // namespace hearth

namespace cuda {

template <thread_scope Scope>
struct latch : hearth::Latch {
    using hearth::Latch::Latch;
};
template <thread_scope Scope, ptrdiff_t Most = hearth::most_permits>
struct counting_semaphore : hearth::Semaphore<Most> {
    using hearth::Semaphore<Most>::Semaphore;
};
template <thread_scope Scope>
using binary_semaphore = counting_semaphore<Scope, 1>;

namespace std {

using latch = hearth::Latch;
template <ptrdiff_t Most = hearth::most_permits>
using counting_semaphore = hearth::Semaphore<Most>;
using binary_semaphore = counting_semaphore<1>;

}  // namespace std
}  // namespace cuda
