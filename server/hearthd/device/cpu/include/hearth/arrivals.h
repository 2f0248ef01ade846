// Arrival counts of barriers, and waits that let the other threads of the block run.
//
// A barrier is one 64-bit word, as on a GPU, so that programs that lay out shared memory by hand find the same sizes.
// It has the phase (2 bits), the arrivals that the phase still needs (31), and those that the next phase needs (31).
// Blocks may share a barrier of a wider scope and run on several cores, so the word is atomic.
#pragma once

namespace hearth {

// Waits until `ready()` holds. As on a GPU, the kernel never ends if the condition never becomes true.
template <class Ready>
inline void wait_until(Ready ready) {
    while (!ready()) yield();
}

// A single test, probably in a loop of the program. If it fails, the other threads run.
template <class Ready>
inline bool poll(Ready ready) {
    if (ready()) return true;
    yield();
    return ready();
}

inline long long monotonic_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

// Waits for at most `ns` nanoseconds. Returns true if `ready()` became true.
template <class Ready>
inline bool wait_for_ns(Ready ready, long long ns) {
    if (poll(ready)) return true;
    const long long end = monotonic_ns() + ns;
    while (monotonic_ns() < end) {
        if (poll(ready)) return true;
    }
    return false;
}

// A std::chrono duration in nanoseconds; <chrono> itself is not needed for it.
template <class Duration>
inline long long nanoseconds_of(const Duration &d) {
    using Period = typename Duration::period;
    return static_cast<long long>(d.count() * (1e9L * Period::num / Period::den));
}

class Arrivals {
public:
    using Word = uint64_t;
    static constexpr uint64_t max_count = (uint64_t{1} << 31) - 1;

    static constexpr Word initial(uint64_t count) { return count * (one_pending | one_expected); }
    static constexpr uint64_t pending(Word word) { return word >> pending_shift & max_count; }
    static constexpr bool parity(Word word) { return (word >> phase_shift & 1) != 0; }
    static void start(Word *place, uint64_t count) { __atomic_store_n(place, initial(count), __ATOMIC_RELEASE); }
    static Word now(const Word *place) { return __atomic_load_n(place, __ATOMIC_ACQUIRE); }

    // Returns the word as it was before the arrival. The last arrival of a phase runs `complete` before the next begins.
    template <class Complete>
    static Word arrive(Word *place, uint64_t count, uint64_t dropped, Complete complete) {
        Word before = now(place);
        for (;;) {
            const uint64_t lacking = pending(before);
            if (lacking == 0 && count != 0 && expected(before) != 0) {  // another core runs `complete`
                yield();
                before = now(place);
                continue;
            }
            if (lacking < count || expected(before) < dropped) trap("barrier: more arrivals than it expects");
            Word after = before - count * one_pending - dropped * one_expected;
            if (!__atomic_compare_exchange_n(place, &before, after, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) continue;
            if (lacking != count || count == 0) return before;
            complete();
            after = ((after >> phase_shift) + 1) << phase_shift | initial(expected(after));
            __atomic_store_n(place, after, __ATOMIC_RELEASE);
            return before;
        }
    }
    static Word arrive(Word *place, uint64_t count = 1, uint64_t dropped = 0) {
        return arrive(place, count, dropped, [] {});
    }

    // True if the phase of `token` has ended.
    static bool passed(const Word *place, Word token) { return now(place) >> phase_shift != token >> phase_shift; }
    // True if the phase of that parity has ended; a barrier begins in phase 0.
    static bool passed_parity(const Word *place, bool of) { return parity(now(place)) != of; }

private:
    static constexpr unsigned pending_shift = 31, phase_shift = 62;
    static constexpr Word one_expected = 1, one_pending = Word{1} << pending_shift;
    static constexpr uint64_t expected(Word word) { return word & max_count; }
};

}  // namespace hearth
