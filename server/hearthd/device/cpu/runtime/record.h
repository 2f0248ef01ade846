// What this process's kernels are doing, in memory that another process can read when it has died of one of them: the
// front, which made it (hearthd/shared/crash_record.py has the same layout). Nothing here is needed to run kernels.
#pragma once
#include <signal.h>
#include <stddef.h>
#include <stdint.h>

#include <atomic>

#include "../include/hearth/abi.h"

namespace hearth {

// A thread that launches kernels: the stream's. Others run blocks of its launch.
struct Slot {
    std::atomic<uint32_t> taken, running;
    char session[56];
    char kernel[192];
};

struct Record {
    enum : uint32_t { nothing, being_written, written };

    std::atomic<uint32_t> state;
    int32_t signal, code;
    uint32_t slot;  // of the launch that did it, counted from 1; 0: none did
    uint64_t address;
    uint32_t has_address;
    int32_t sender;
    uint32_t block[3];
    std::atomic<uint32_t> said_by;  // the slot that `message` is of
    uint32_t unused;
    char message[448];
    char spare[12];
    Slot slots[1];
};
static_assert(sizeof(Slot) == 256 && offsetof(Record, message) == 52 && offsetof(Record, slots) == 512);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// The launch whose block this thread runs. Initial-exec: a signal handler reads it.
extern thread_local Slot *running_slot __attribute__((tls_model("initial-exec")));

// A launch of this thread begins; its slot, or null where there is none. `end_launch` takes what this returned.
Slot *begin_launch(const char *kernel);
inline void end_launch(Slot *slot) {
    if (slot != nullptr) slot->running.store(0, std::memory_order_release);
}

// What the thread that is about to abort wants to be known of it. Cut short where it is long.
void say(const char *message);

// In a signal handler: only stores to memory that is there.
void record_signal(int number, const siginfo_t *info);

}  // namespace hearth

extern "C" {
// `memory` holds `slots` slots; once per process.
void hearth_record(void *memory, uint32_t slots);
// Launches of this thread are this session's from now on.
void hearth_whose(const char *session);
}
