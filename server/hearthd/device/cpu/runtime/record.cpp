#include "record.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#include "faults.h"

thread_local hearth::Slot *hearth::running_slot = nullptr;

namespace hearth {
namespace {

std::atomic<Record *> the_record{nullptr};
std::atomic<uint32_t> slot_count{0};

void copy_text(char *to, size_t room, const char *from) {
    const size_t length = strnlen(from, room - 1);
    memcpy(to, from, length);
    to[length] = '\0';
}

// A thread's slot, from its first launch to its end.
struct Claim {
    Slot *slot = nullptr;

    Slot *get() {
        if (slot == nullptr) slot = claim();
        return slot;
    }

    // The slot of a thread that ends inside a kernel is kept: the kernel called exit(), which ends the process.
    ~Claim() {
        if (slot == nullptr || slot->running.load(std::memory_order_relaxed) != 0) return;
        slot->session[0] = '\0';
        slot->taken.store(0, std::memory_order_release);
    }

    static Slot *claim() {
        Record *const record = the_record.load(std::memory_order_acquire);
        if (record == nullptr) return nullptr;
        for (uint32_t i = 0; i < slot_count.load(std::memory_order_relaxed); ++i) {
            uint32_t free = 0;
            if (record->slots[i].taken.compare_exchange_strong(free, 1)) return &record->slots[i];
        }
        return nullptr;
    }
};

thread_local Claim claim;

uint32_t number_of(const Record &record, const Slot *slot) {
    return slot == nullptr ? 0 : static_cast<uint32_t>(slot - record.slots) + 1;
}

}  // namespace

Slot *begin_launch(const char *kernel) {
    if (the_record.load(std::memory_order_relaxed) == nullptr) return nullptr;
    Slot *const slot = claim.get();
    if (slot == nullptr) return nullptr;
    copy_text(slot->kernel, sizeof slot->kernel, kernel);
    slot->running.store(1, std::memory_order_release);
    return slot;
}

void say(const char *message) {
    Record *const record = the_record.load(std::memory_order_acquire);
    uint32_t nobody = 0;
    if (record == nullptr || running_slot == nullptr) return;
    if (!record->said_by.compare_exchange_strong(nobody, number_of(*record, running_slot))) return;
    copy_text(record->message, sizeof record->message, message);
}

void record_signal(int number, const siginfo_t *info) {
    Record *const record = the_record.load(std::memory_order_acquire);
    if (record == nullptr) return;
    uint32_t state = Record::nothing;
    if (record->state.compare_exchange_strong(state, Record::being_written)) {
        const bool places = number == SIGSEGV || number == SIGBUS;
        record->signal = number;
        record->code = info->si_code;
        record->slot = number_of(*record, running_slot);
        // The processor does not report every address: SI_KERNEL means that it is unknown (x86's non-canonical
        // addresses).
        record->has_address = places && info->si_code > 0 && info->si_code != SI_KERNEL ? 1 : 0;
        record->address = record->has_address != 0 ? reinterpret_cast<uintptr_t>(info->si_addr) : 0;
        record->sender = info->si_code <= 0 && info->si_pid != getpid() ? info->si_pid : 0;
        record->block[0] = hearth_tls.block_idx.x;
        record->block[1] = hearth_tls.block_idx.y;
        record->block[2] = hearth_tls.block_idx.z;
        record->state.store(Record::written, std::memory_order_release);
        return;
    }
    // Another thread was first: waits a short time until it has finished, because this thread then ends the process.
    for (int i = 0; i < 100 && record->state.load(std::memory_order_acquire) != Record::written; ++i) {
        const timespec pause = {0, 1000000};
        nanosleep(&pause, nullptr);
    }
}

}  // namespace hearth

extern "C" {

void hearth_record(void *memory, uint32_t slots) {
    hearth::slot_count.store(slots);
    hearth::the_record.store(static_cast<hearth::Record *>(memory), std::memory_order_release);
    hearth::watch_faults();
}

void hearth_whose(const char *session) {
    hearth::Slot *const slot = hearth::claim.get();
    if (slot != nullptr) hearth::copy_text(slot->session, sizeof slot->session, session);
}

}
