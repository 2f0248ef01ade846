#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace hearth {
namespace {

struct Job {
    BlockFn fn;
    void *context;
    uint64_t count, chunk;
    std::atomic<uint64_t> next{0};
    unsigned helpers = 0;  // workers inside this job; guarded by the pool's mutex
    Job *previous = nullptr, *following = nullptr;
    std::condition_variable left;

    bool exhausted() const { return next.load(std::memory_order_relaxed) >= count; }

    void work() {
        for (;;) {
            const uint64_t begin = next.fetch_add(chunk, std::memory_order_relaxed);
            if (begin >= count) return;
            const uint64_t end = std::min(begin + chunk, count);
            for (uint64_t i = begin; i < end; ++i) fn(context, i);
        }
    }
};

class Pool {
public:
    explicit Pool(unsigned threads) : threads_(threads) {}

    unsigned threads() const { return threads_; }

    void run(Job &job) {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (started_ < threads_) start_workers();
            job.following = jobs_;
            if (jobs_ != nullptr) jobs_->previous = &job;
            jobs_ = &job;
        }
        wake_.notify_one();  // each worker that finds work wakes the next: the caller pays for one only
        job.work();
        std::unique_lock<std::mutex> lock(mutex_);
        unlink(job);
        job.left.wait(lock, [&job] { return job.helpers == 0; });
    }

private:
    void start_workers() {
        // Started at the first launch that can use them, and for the life of the process: a worker may be inside a
        // kernel that never returns, so nobody may wait for it at exit.
        for (; started_ < threads_; ++started_) std::thread([this] { serve(); }).detach();
    }

    Job *find() const {
        for (Job *job = jobs_; job != nullptr; job = job->following) {
            if (!job->exhausted()) return job;
        }
        return nullptr;
    }

    void unlink(Job &job) {
        if (job.previous != nullptr) job.previous->following = job.following;
        else jobs_ = job.following;
        if (job.following != nullptr) job.following->previous = job.previous;
    }

    [[noreturn]] void serve() {
        pthread_setname_np(pthread_self(), "hearth-block");
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            Job *job = nullptr;
            wake_.wait(lock, [&] { return (job = find()) != nullptr; });
            ++job->helpers;
            lock.unlock();
            wake_.notify_one();
            job->work();
            lock.lock();
            if (--job->helpers == 0) job->left.notify_one();
        }
    }

    const unsigned threads_;
    unsigned started_ = 0;
    std::mutex mutex_;
    std::condition_variable wake_;
    Job *jobs_ = nullptr;
};

unsigned usable_cores() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<unsigned>(CPU_COUNT(&set));
    return std::max(1u, std::thread::hardware_concurrency());
}

std::atomic<unsigned> wanted_cores{0};

// Leaked on purpose (see start_workers); a forked child has none of its parent's threads and gets a pool of its own.
Pool &pool() {
    static std::mutex mutex;
    static std::atomic<Pool *> current{nullptr};
    static std::atomic<pid_t> owner{0};
    Pool *found = current.load(std::memory_order_acquire);
    if (found != nullptr && owner.load(std::memory_order_relaxed) == getpid()) return *found;
    const std::lock_guard<std::mutex> lock(mutex);
    if (current.load() == nullptr || owner.load() != getpid()) {
        const unsigned cores = wanted_cores.load() != 0 ? wanted_cores.load() : usable_cores();
        current.store(new Pool(cores - 1), std::memory_order_release);  // the caller is the other one
        owner.store(getpid());
    }
    return *current.load();
}

}  // namespace

void parallel_for(uint64_t count, BlockFn fn, void *context) {
    Pool *const workers = count > 1 ? &pool() : nullptr;
    if (workers == nullptr || workers->threads() == 0) {
        for (uint64_t i = 0; i < count; ++i) fn(context, i);
        return;
    }
    Job job;
    job.fn = fn;
    job.context = context;
    job.count = count;
    // Small enough that the last chunks even out, large enough that the shared counter is not what limits.
    job.chunk = std::clamp<uint64_t>(count / (uint64_t{workers->threads() + 1} * 16), 1, 256);
    workers->run(job);
}

}  // namespace hearth

extern "C" unsigned hearth_worker_count(void) { return hearth::pool().threads() + 1; }
extern "C" void hearth_set_workers(unsigned count) { hearth::wanted_cores.store(count); }
