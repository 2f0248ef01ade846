#include "racecheck.h"

#include <link.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>

#include "faults.h"

__thread hearth::race::Checker *hearth::race::running = nullptr;
__thread hearth::race::Findings *hearth::race::findings = nullptr;

namespace hearth::race {
namespace {

std::atomic<uint64_t> launches{0};
thread_local std::vector<Report> latest;

template <class T>
T *mapped(size_t count) {
    void *const memory = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) give_up("hearth racecheck: no address space for the shadow of shared memory");
    return static_cast<T *>(memory);
}

template <class T>
void unmap(T *memory, size_t count) {
    if (memory != nullptr) munmap(memory, count * sizeof(T));
}

// The module whose thread-local segment of this thread holds `record`.
struct Segment {
    const unsigned char *record;
    const unsigned char *code, *start;
    size_t bytes;
};

int find_segment(dl_phdr_info *info, size_t, void *context) {
    auto &segment = *static_cast<Segment *>(context);
    const auto *const start = static_cast<const unsigned char *>(info->dlpi_tls_data);
    if (start == nullptr) return 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto &header = info->dlpi_phdr[i];
        if (header.p_type != PT_TLS || static_cast<size_t>(segment.record - start) >= header.p_memsz) continue;
        segment.code = reinterpret_cast<const unsigned char *>(info->dlpi_addr);
        segment.start = start;
        segment.bytes = header.p_memsz;
        return 1;
    }
    return 0;
}

bool is_release(int order) {
    return order == __ATOMIC_RELEASE || order == __ATOMIC_ACQ_REL || order == __ATOMIC_SEQ_CST;
}

}  // namespace

// ---- findings ----

Findings::Findings() : serial_(launches.fetch_add(1, std::memory_order_relaxed) + 1) {}

void Findings::add(const Report &report) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Report &known : reports_) {
        if (known.site[0] == report.site[0] && known.site[1] == report.site[1] && known.kind[0] == report.kind[0] &&
            known.kind[1] == report.kind[1]) {
            ++known.count;
            known.across |= report.across;
            return;
        }
    }
    if (reports_.size() < kept) reports_.push_back(report);
}

void Findings::keep() {
    if (!reports_.empty()) latest = std::move(reports_);
}

// ---- shadow ----

Shadow::~Shadow() { forget(); }

void Shadow::forget() {
    unmap(words_, words_mapped_);
    unmap(bytes_of_words_, words_mapped_ * 4);
    unmap(split_, words_mapped_);
    words_ = bytes_of_words_ = nullptr;
    split_ = nullptr;
    words_mapped_ = 0;
}

void Shadow::cover(const unsigned char *base, size_t bytes) {
    base_ = base;
    bytes_ = bytes;
    const size_t words = (bytes + (reinterpret_cast<uintptr_t>(base) & 3) + 3) / 4 + 1;
    if (words <= words_mapped_) return;
    forget();
    words_mapped_ = words;
    words_ = mapped<Cell>(words);
    bytes_of_words_ = mapped<Cell>(words * 4);
    split_ = mapped<uint32_t>(words);
}

// ---- blocks ----

void Checker::enter(const Unshared *record, size_t count, WarpFinish sync) {
    const Index dim = hearth_tls.block_dim;
    threads_ = dim.x * dim.y * dim.z;
    sync_ = sync;
    record_.assign(record, record + count);
    if (launch_ != findings->serial()) {
        launch_ = findings->serial();
        locate(record->begin);
    }
    dynamic_.cover(hearth_dynamic_shared, hearth_tls.dynamic_shared_bytes);
    if (time_.size() < threads_) {
        time_.resize(threads_, 1);
        clocks_.resize(threads_);
        fences_.resize(threads_);
    }
    next_epoch();
}

void Checker::locate(const void *record) {
    Segment segment{static_cast<const unsigned char *>(record), nullptr, nullptr, 0};
    if (dl_iterate_phdr(find_segment, &segment) == 0) give_up("hearth racecheck: the module's segment is not found");
    code_ = segment.code;
    static_.cover(segment.start, segment.bytes);
}

void Checker::leave() {
    settle();
    running = nullptr;
}

// Orders all earlier accesses before all later ones: cells and clocks of earlier phases do not count.
void Checker::next_epoch() {
    settle();
    if (++epoch_ == 0) {
        dynamic_.forget();
        static_.forget();
        for (Clock &clock : clocks_) clock.epoch = 0;
        for (Clock &clock : fences_) clock.epoch = 0;
        launch_ = 0;
        epoch_ = 1;
    }
    crowds_used_ = 1;
    if (!released_.empty()) released_.clear();
}

void Checker::barrier() { next_epoch(); }

// ---- clocks ----

void Checker::renew(Clock &clock) const {
    if (clock.epoch == epoch_) return;
    clock.epoch = epoch_;
    memset(clock.lanes, 0, sizeof clock.lanes);
    clock.all.clear();
}

inline bool Checker::is_before(uint32_t rank, uint32_t time) const {
    if (rank == mine_.rank) return true;
    const Clock &clock = clocks_[mine_.rank];
    if (clock.epoch != epoch_) return false;
    if (rank / 32 == mine_.rank / 32) return time <= clock.lanes[rank % 32];
    return !clock.all.empty() && time <= clock.all[rank];
}

// Advances `clock`, which belongs to the thread `rank`, to the times in `all`.
void Checker::join(Clock &clock, const std::vector<uint32_t> &all, unsigned rank) const {
    renew(clock);
    if (clock.all.empty()) clock.all.assign(threads_, 0);
    for (unsigned i = 0; i < threads_; ++i) clock.all[i] = std::max(clock.all[i], all[i]);
    const unsigned first = rank / 32 * 32;
    for (unsigned i = first; i < std::min(first + 32, threads_); ++i) {
        clock.lanes[i - first] = std::max(clock.lanes[i - first], all[i]);
    }
}

// Advances `all` to the times in `clock`.
void Checker::merge(std::vector<uint32_t> &all, const Clock &clock, unsigned rank) const {
    if (all.empty()) all.assign(threads_, 0);
    for (unsigned i = 0; i < clock.all.size(); ++i) all[i] = std::max(all[i], clock.all[i]);
    const unsigned first = rank / 32 * 32;
    for (unsigned i = first; i < std::min(first + 32, threads_); ++i) {
        all[i] = std::max(all[i], clock.lanes[i - first]);
    }
}

void Checker::met(unsigned first_rank, uint32_t lanes, WarpFinish finish) {
    if (finish != sync_ || (lanes & (lanes - 1)) == 0) return;
    Clock together;
    renew(together);
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        const auto lane = static_cast<unsigned>(__builtin_ctz(rest));
        Clock &clock = clocks_[first_rank + lane];
        renew(clock);
        for (unsigned i = 0; i < 32; ++i) together.lanes[i] = std::max(together.lanes[i], clock.lanes[i]);
        if (!clock.all.empty()) merge(together.all, clock, first_rank);
        together.lanes[lane] = std::max(together.lanes[lane], time_[first_rank + lane]);
    }
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        const auto lane = static_cast<unsigned>(__builtin_ctz(rest));
        clocks_[first_rank + lane] = together;
        ++time_[first_rank + lane];
    }
}

// Orders the earlier accesses of this thread before those that follow another thread's atomic operation, if that
// observes a later atomic operation of this thread.
void Checker::fence() {
    const unsigned rank = hearth_tls.running;
    Clock &clock = clocks_[rank];
    renew(clock);
    fences_[rank] = clock;
    fences_[rank].lanes[rank % 32] = time_[rank]++;
}

void Checker::release(const void *variable, int order) {
    const unsigned rank = hearth_tls.running;
    if (is_release(order)) fence();
    if (fences_[rank].epoch == epoch_) merge(released_[variable], fences_[rank], rank);
}

// Takes effect even without a fence after the atomic operation, because locks are commonly acquired without one.
void Checker::acquire(const void *variable) {
    if (released_.empty()) return;
    const auto found = released_.find(variable);
    if (found != released_.end()) join(clocks_[hearth_tls.running], found->second, hearth_tls.running);
}

// ---- accesses ----

bool Checker::is_of_record(const unsigned char *address) const {
    return std::any_of(record_.begin(), record_.end(), [address](const Unshared &variable) {
        return static_cast<size_t>(address - static_cast<const unsigned char *>(variable.begin)) < variable.bytes;
    });
}

void Checker::access(Kind kind, const void *place, size_t bytes, const void *site) {
    const auto *address = static_cast<const unsigned char *>(place);
    Shadow *shadow = nullptr;
    if (dynamic_.holds(address)) {
        shadow = &dynamic_;
    } else if (static_.holds(address) && !is_of_record(address)) {
        shadow = &static_;
    } else {
        return;
    }
    settle();
    const uint32_t rank = hearth_tls.running;
    mine_ = Access{epoch_, time_[rank], static_cast<uint32_t>(static_cast<const unsigned char *>(site) - code_), rank};
    // The order of a fence before an atomic operation also applies to the operation itself.
    const Clock &fence = fences_[rank];
    if (kind == atomic_update && fence.epoch == epoch_ && fence.lanes[rank % 32] + 1 == mine_.time) --mine_.time;
    in_ = shadow;
    reported_ = false;
    const unsigned char *const end = address + std::min(bytes, shadow->left(address));
    while (address != end) {
        const auto in_word = reinterpret_cast<uintptr_t>(address) & 3;
        const auto part = static_cast<uint32_t>(std::min<size_t>(4 - in_word, static_cast<size_t>(end - address)));
        const size_t word = shadow->word_of(address);
        if (part == 4 && shadow->split(word) != epoch_) {
            check(shadow->word(word), kind, address, 4);
        } else {
            if (shadow->split(word) != epoch_) split(*shadow, word);
            for (uint32_t i = 0; i < part; ++i) check(shadow->byte(word * 4 + in_word + i), kind, address + i, 1);
        }
        address += part;
    }
}

void Checker::split(Shadow &shadow, size_t word) {
    shadow.split(word) = epoch_;
    for (size_t i = 0; i < 4; ++i) {
        Cell &cell = shadow.byte(word * 4 + i);
        cell = shadow.word(word);
        for (Accesses &accesses : cell.of) {
            if (accesses.first.epoch != epoch_ || accesses.more == 0) continue;
            const uint32_t copy = new_crowd();
            crowds_[copy] = crowds_[accesses.more];
            accesses.more = copy;
        }
    }
}

inline __attribute__((always_inline)) void Checker::check(
    Cell &cell, Kind kind, const unsigned char *address, uint32_t bytes) {
    // The kinds of accesses that race with an access, by its kind.
    static constexpr uint32_t racing[kinds] = {
        1u << write | 1u << atomic_update,
        1u << read | 1u << atomic_read | 1u << atomic_update,  // and writes of another value, see below
        1u << write,
        1u << read | 1u << write,
    };
    for (uint32_t k = 0; k < kinds && !reported_; ++k) {
        const bool overwrites = kind == write && k == write;
        if ((racing[kind] >> k & 1) == 0 && !overwrites) continue;
        const Access *const other = unordered(cell.of[k]);
        if (other == nullptr) continue;
        const Report found = report(*other, static_cast<Kind>(k), kind, address);
        if (overwrites) {
            Pending pending{found, address, bytes, {}};
            memcpy(pending.before, address, bytes);
            pending_.push_back(pending);
        } else {
            findings->add(found);
            reported_ = true;
        }
    }
    add(cell.of[kind]);
}

// Returns an access of another thread that is not ordered before the present one.
inline const Access *Checker::unordered(const Accesses &accesses) {
    const Access &first = accesses.first;
    if (first.epoch != epoch_) return nullptr;
    if (accesses.more == 0) return is_before(first.rank, first.time) ? nullptr : &first;
    const Crowd &crowd = crowds_[accesses.more];
    for (uint32_t rest = crowd.lanes; rest != 0; rest &= rest - 1) {
        const auto lane = static_cast<unsigned>(__builtin_ctz(rest));
        const uint32_t rank = first.rank / 32 * 32 + lane;
        if (is_before(rank, crowd.time[lane])) continue;
        found_ = Access{epoch_, crowd.time[lane], crowd.site[lane], rank};
        return &found_;
    }
    if (crowd.other.epoch == epoch_ && !is_before(crowd.other.rank, crowd.other.time)) return &crowd.other;
    return nullptr;
}

inline void Checker::add(Accesses &accesses) {
    Access &first = accesses.first;
    if (first.epoch != epoch_ || (accesses.more == 0 && is_before(first.rank, first.time))) {
        first = mine_;
        accesses.more = 0;
        return;
    }
    if (accesses.more == 0) {
        accesses.more = new_crowd();
        Crowd &crowd = crowds_[accesses.more];
        crowd.lanes = uint32_t{1} << first.rank % 32;
        crowd.time[first.rank % 32] = first.time;
        crowd.site[first.rank % 32] = first.site;
        crowd.other.epoch = 0;
    } else if (unordered(accesses) == nullptr) {
        first = mine_;
        accesses.more = 0;
        return;
    }
    Crowd &crowd = crowds_[accesses.more];
    if (crowd.other.epoch == epoch_) return;
    if (first.rank / 32 != mine_.rank / 32) {
        crowd.other = mine_;
        return;
    }
    for (uint32_t rest = crowd.lanes; rest != 0; rest &= rest - 1) {
        const auto lane = static_cast<unsigned>(__builtin_ctz(rest));
        if (is_before(first.rank / 32 * 32 + lane, crowd.time[lane])) crowd.lanes &= ~(uint32_t{1} << lane);
    }
    crowd.lanes |= uint32_t{1} << mine_.rank % 32;
    crowd.time[mine_.rank % 32] = mine_.time;
    crowd.site[mine_.rank % 32] = mine_.site;
}

uint32_t Checker::new_crowd() {
    if (crowds_used_ >= crowds_.size()) crowds_.resize(std::max<size_t>(64, crowds_.size() * 2));
    return crowds_used_++;
}

Report Checker::report(const Access &earlier, Kind earlier_kind, Kind kind, const unsigned char *address) const {
    return Report{hearth_tls.block_idx,
                  {earlier.rank, mine_.rank},
                  {earlier.site, mine_.site},
                  {earlier_kind, kind},
                  in_ == &static_ ? 1u : 0u,
                  static_cast<uint32_t>(in_->offset(address)),
                  earlier.rank / 32 != mine_.rank / 32 ? 1u : 0u,
                  1};
}

void Checker::compare() {
    for (const Pending &pending : pending_) {
        if (memcmp(pending.address, pending.before, pending.bytes) == 0) continue;
        findings->add(pending.report);
        break;  // all of them belong to one access
    }
    pending_.clear();
}

}  // namespace hearth::race

extern "C" {

void hearth_race_enter(const hearth::Unshared *record, size_t count, hearth::WarpFinish sync) {
    static thread_local std::unique_ptr<hearth::race::Checker> checker;
    if (hearth::race::running != nullptr) return;  // the block has entered before, on another of its stacks
    if (checker == nullptr) checker.reset(new hearth::race::Checker);
    hearth::race::running = checker.get();
    hearth::race::running->enter(record, count, sync);
}

void hearth_race_arrive(const void *meeting) {
    if (hearth::race::running != nullptr) hearth::race::running->release(meeting, __ATOMIC_RELEASE);
}

void hearth_race_depart(const void *meeting) {
    if (hearth::race::running != nullptr) hearth::race::running->acquire(meeting);
}

uint32_t hearth_race_reports(hearth::race::Report *into, uint32_t room) {
    const auto count = static_cast<uint32_t>(std::min<size_t>(room, hearth::race::latest.size()));
    std::copy_n(hearth::race::latest.begin(), count, into);
    hearth::race::latest.clear();
    return count;
}

}
