#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

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
        wake_.notify_one();  // each worker that finds work wakes the next, so the caller wakes only one
        job.work();
        std::unique_lock<std::mutex> lock(mutex_);
        unlink(job);
        job.left.wait(lock, [&job] { return job.helpers == 0; });
    }

private:
    void start_workers() {
        // Started at the first launch that can use them, and never joined: a worker may be inside a kernel that never
        // returns, so the exit must not wait for it.
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

// Threads for launches whose blocks are all resident. They are kept for the next launch, because creating their stacks
// and fibers takes time; threads beyond `kept` end with the launch.
class Residents {
public:
    void run(uint64_t count, BlockFn fn, void *context) {
        Launch launch{fn, context, count - 1};
        for (uint64_t index = 1; index < count; ++index) {
            Resident *resident = nullptr;
            {
                const std::lock_guard<std::mutex> lock(mutex_);
                if (!idle_.empty()) {
                    resident = idle_.back();
                    idle_.pop_back();
                }
            }
            if (resident == nullptr) {
                resident = new Resident;
                resident->give(launch, index);
                std::thread([this, resident] { serve(resident); }).detach();
            } else {
                resident->give(launch, index);
            }
        }
        fn(context, 0);
        std::unique_lock<std::mutex> lock(launch.mutex);
        launch.ended.wait(lock, [&launch] { return launch.left == 0; });
    }

private:
    static constexpr size_t kept = 32;

    struct Launch {
        BlockFn fn;
        void *context;
        uint64_t left;
        std::mutex mutex;
        std::condition_variable ended;

        Launch(BlockFn fn, void *context, uint64_t left) : fn(fn), context(context), left(left) {}
    };

    struct Resident {
        std::mutex mutex;
        std::condition_variable wake;
        Launch *launch = nullptr;
        uint64_t index = 0;

        void give(Launch &given, uint64_t which) {
            const std::lock_guard<std::mutex> lock(mutex);
            launch = &given;
            index = which;
            wake.notify_one();
        }
    };

    void serve(Resident *resident) {
        pthread_setname_np(pthread_self(), "hearth-resident");
        for (bool stays = true; stays;) {
            Launch *launch = nullptr;
            {
                std::unique_lock<std::mutex> lock(resident->mutex);
                resident->wake.wait(lock, [resident] { return resident->launch != nullptr; });
                launch = resident->launch;
                resident->launch = nullptr;
            }
            launch->fn(launch->context, resident->index);
            {
                const std::lock_guard<std::mutex> lock(mutex_);
                stays = idle_.size() < kept;
                if (stays) idle_.push_back(resident);
            }
            const std::lock_guard<std::mutex> lock(launch->mutex);
            if (--launch->left == 0) launch->ended.notify_one();
        }
        delete resident;
    }

    std::mutex mutex_;
    std::vector<Resident *> idle_;
};

unsigned usable_cores() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<unsigned>(CPU_COUNT(&set));
    return std::max(1u, std::thread::hardware_concurrency());
}

std::atomic<unsigned> wanted_cores{0};

// The `T` of this process. Never freed (see start_workers). A forked child gets a separate one, because it has none of
// its parent's threads.
template <class T, class Make>
T &of_process(Make make) {
    static std::mutex mutex;
    static std::atomic<T *> current{nullptr};
    static std::atomic<pid_t> owner{0};
    T *found = current.load(std::memory_order_acquire);
    if (found != nullptr && owner.load(std::memory_order_relaxed) == getpid()) return *found;
    const std::lock_guard<std::mutex> lock(mutex);
    if (current.load() == nullptr || owner.load() != getpid()) {
        current.store(make(), std::memory_order_release);
        owner.store(getpid());
    }
    return *current.load();
}

Pool &pool() {
    return of_process<Pool>([] {
        const unsigned cores = wanted_cores.load() != 0 ? wanted_cores.load() : usable_cores();
        return new Pool(cores - 1);  // the caller takes part as well
    });
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
    // Small enough to balance the load at the end, large enough that the shared counter is no bottleneck.
    job.chunk = std::clamp<uint64_t>(count / (uint64_t{workers->threads() + 1} * 16), 1, 256);
    workers->run(job);
}

void resident_for(uint64_t count, BlockFn fn, void *context) {
    of_process<Residents>([] { return new Residents; }).run(count, fn, context);
}

}  // namespace hearth

extern "C" unsigned hearth_worker_count(void) { return hearth::pool().threads() + 1; }
extern "C" void hearth_set_workers(unsigned count) { hearth::wanted_cores.store(count); }
