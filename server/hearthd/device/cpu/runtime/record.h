// The crash record: the state of this process's kernels, in memory that the front has created, and reads after a crash
// (hearthd/shared/crash_record.py has the same layout). Kernels run without it, too.
#pragma once
#include <signal.h>
#include <stddef.h>
#include <stdint.h>

#include <atomic>

#include "../include/hearth/abi.h"

namespace hearth {

// The slot of a thread that launches kernels, which is a stream's thread. Other threads run blocks of its launch.
struct Slot {
    std::atomic<uint32_t> taken, running;
    char session[56];
    char kernel[192];
};

struct Record {
    enum : uint32_t { nothing, being_written, written };

    std::atomic<uint32_t> state;
    int32_t signal, code;
    uint32_t slot;  // slot of the launch that caused the signal, counted from 1; 0: no launch caused it
    uint64_t address;
    uint32_t has_address;
    int32_t sender;
    uint32_t block[3];
    std::atomic<uint32_t> said_by;  // the slot whose launch set `message`
    uint32_t unused;
    char message[448];
    char spare[12];
    Slot slots[1];
};
static_assert(sizeof(Slot) == 256 && offsetof(Record, message) == 52 && offsetof(Record, slots) == 512);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// The slot of the launch whose block this thread runs. Initial-exec, because a signal handler reads it.
extern thread_local Slot *running_slot __attribute__((tls_model("initial-exec")));

// Records that this thread begins a launch. Returns the slot for `end_launch`; null if there is none.
Slot *begin_launch(const char *kernel);
inline void end_launch(Slot *slot) {
    if (slot != nullptr) slot->running.store(0, std::memory_order_release);
}

// Records the message of a thread that is about to abort, truncated if necessary.
void say(const char *message);

// To be called in a signal handler; only stores to existing memory.
void record_signal(int number, const siginfo_t *info);

}  // namespace hearth

extern "C" {
// Sets the memory of the record, which has `slots` slots. Once per process.
void hearth_record(void *memory, uint32_t slots);
// Attributes later launches of this thread to the session.
void hearth_whose(const char *session);
}
