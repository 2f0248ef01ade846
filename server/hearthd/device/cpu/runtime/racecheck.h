// The race check: finds unordered accesses of a block's threads to its shared memory (HEARTH_CPU_RACECHECK).
//
// A happens-before check like those of ThreadSanitizer and FastTrack (Flanagan and Freund, 2009), for the order that
// CUDA promises: a block's barrier orders all threads of the block, __syncwarp() the participating lanes. Shuffles,
// votes and other operations of a warp order no memory. A fence before an atomic operation, and a releasing atomic
// operation, order earlier accesses before the accesses that follow another thread's atomic operation on the same
// variable.
//
// The threads of a block run on one operating system thread, so a block's checker needs no lock.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "../include/hearth/abi.h"

namespace hearth::race {

// Kinds of accesses. Atomic operations do not race with each other.
enum Kind : uint32_t { read, write, atomic_read, atomic_update, kinds };

// Two accesses that race, in the order in which they were seen (hearthd/device/cpu/racecheck.py has the same layout).
struct Report {
    Index block;
    uint32_t rank[2];
    uint32_t site[2];  // the accesses' place in the module's code
    uint32_t kind[2];
    uint32_t is_static;  // else in the dynamic shared memory
    uint32_t offset;     // from the start of the dynamic shared memory, or of the module's thread-local segment
    uint32_t across;     // 1 if at least one pair is of two warps
    uint64_t count;      // number of times that this pair of places has been seen
};

// The races of one launch, one report for each pair of places.
class Findings {
public:
    Findings();
    void add(const Report &report);
    // Called at the end of the launch: makes hearth_race_reports() of this thread return these races.
    void keep();
    uint64_t serial() const { return serial_; }

private:
    static constexpr size_t kept = 64;
    const uint64_t serial_;
    std::mutex mutex_;
    std::vector<Report> reports_;
};

// An access of the thread `rank` when its clock showed `time`, in the phase `epoch`.
struct Access {
    uint32_t epoch, time, site, rank;
};

// Accesses of one kind to one place that are not ordered among each other. Those of an ended phase do not count.
struct Accesses {
    Access first;
    uint32_t more;  // index of a `Crowd`, or 0 if `first` is the only access
};

// Accesses of several lanes of one warp, that of `Accesses::first`, and one access of another warp. Accesses of further
// warps need not be kept: an access that races with one of them also races with one of these.
struct Crowd {
    uint32_t lanes;
    uint32_t time[32], site[32];
    Access other;
};

struct Cell {
    Accesses of[kinds];
};

// The accesses to one range of memory: a cell for each word of 4 bytes. From the first access to a part of a word until
// the end of the phase, each byte of the word has a cell.
class Shadow {
public:
    Shadow() = default;
    ~Shadow();
    Shadow(const Shadow &) = delete;
    Shadow &operator=(const Shadow &) = delete;
    void cover(const unsigned char *base, size_t bytes);
    void forget();
    bool holds(const unsigned char *address) const { return static_cast<size_t>(address - base_) < bytes_; }
    size_t offset(const unsigned char *address) const { return static_cast<size_t>(address - base_); }
    size_t left(const unsigned char *address) const { return bytes_ - offset(address); }
    size_t word_of(const unsigned char *address) const {
        return (reinterpret_cast<uintptr_t>(address) >> 2) - (reinterpret_cast<uintptr_t>(base_) >> 2);
    }
    Cell &word(size_t index) { return words_[index]; }
    Cell &byte(size_t index) { return bytes_of_words_[index]; }
    uint32_t &split(size_t index) { return split_[index]; }

private:
    const unsigned char *base_ = nullptr;
    size_t bytes_ = 0, words_mapped_ = 0;
    Cell *words_ = nullptr, *bytes_of_words_ = nullptr;
    uint32_t *split_ = nullptr;
};

// The clocks of other threads as one thread knows them in a phase: their accesses up to these times precede its own.
struct Clock {
    uint32_t epoch = 0;
    uint32_t lanes[32];         // of the thread's warp
    std::vector<uint32_t> all;  // of the block; empty if it knows no other warp's clock
};

// Checks the blocks that an operating system thread runs, one after another.
class Checker {
public:
    void enter(const Unshared *record, size_t count, WarpFinish sync);
    void leave();
    void access(Kind kind, const void *address, size_t bytes, const void *site);

    // Order.
    void barrier();
    void met(unsigned first_rank, uint32_t lanes, WarpFinish finish);
    void fence();
    void acquire(const void *variable);
    void release(const void *variable, int order);
    // Compares announced stores, which have been made by now.
    void settle() {
        if (!pending_.empty()) compare();
    }

private:
    // An announced write to a place that another thread has written: no race if it does not change the value.
    struct Pending {
        Report report;
        const unsigned char *address;
        uint32_t bytes;
        unsigned char before[4];
    };

    void locate(const void *record);
    bool is_of_record(const unsigned char *address) const;
    void next_epoch();
    void check(Cell &cell, Kind kind, const unsigned char *address, uint32_t bytes);
    void split(Shadow &shadow, size_t word);
    const Access *unordered(const Accesses &accesses);
    void add(Accesses &accesses);
    bool is_before(uint32_t rank, uint32_t time) const;
    Report report(const Access &earlier, Kind earlier_kind, Kind kind, const unsigned char *address) const;
    uint32_t new_crowd();
    void compare();
    void renew(Clock &clock) const;
    void join(Clock &clock, const std::vector<uint32_t> &all, unsigned rank) const;
    void merge(std::vector<uint32_t> &all, const Clock &clock, unsigned rank) const;

    uint64_t launch_ = 0;
    const unsigned char *code_ = nullptr;  // base address of the module
    std::vector<Unshared> record_;
    WarpFinish sync_ = nullptr;
    Shadow dynamic_, static_;
    const Shadow *in_ = nullptr;  // the memory of the present access

    uint32_t epoch_ = 0;  // number of the block's current phase, which each block and each barrier change
    unsigned threads_ = 0;
    std::vector<uint32_t> time_;
    std::vector<Clock> clocks_, fences_;
    std::unordered_map<const void *, std::vector<uint32_t>> released_;

    Access mine_ = {};
    bool reported_ = false;  // true once the present access was reported
    Access found_ = {};
    std::vector<Crowd> crowds_;
    uint32_t crowds_used_ = 1;
    std::vector<Pending> pending_;
};

// The checker of the block that this thread runs; null if its module is compiled without the check.
extern __thread Checker *running __attribute__((tls_model("initial-exec")));
// The findings to which its races are added.
extern __thread Findings *findings __attribute__((tls_model("initial-exec")));

}  // namespace hearth::race

extern "C" {
// Copies at most `room` races of this thread's latest launch, forgets all of them, and returns the number copied.
uint32_t hearth_race_reports(hearth::race::Report *into, uint32_t room);
}
