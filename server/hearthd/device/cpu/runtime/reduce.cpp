// All-reduce between processes over one shared segment. Every rank puts a chunk of its data into its own slot, every
// rank then combines its part of that chunk from all slots in rank order (so all ranks get the same bits), and every
// rank takes the whole result. Two sets of slots alternate, so two meetings a chunk are enough.
#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <type_traits>

namespace {

constexpr unsigned max_ranks = 128;
constexpr size_t slot_bytes = 512 * 1024;
constexpr size_t header_bytes = 64 * 1024;

enum Status { done = 0, timed_out = 1, aborted = 2, mismatch = 3, invalid = 4 };

struct alignas(64) Rank {
    std::atomic<uint32_t> arrived;  // meetings this rank has come to; wraps
    uint64_t count;                 // what it is about to reduce: compared after the first meeting
    uint32_t dtype, op;
};

struct Segment {
    uint32_t ranks;
    alignas(64) std::atomic<uint32_t> bell;  // rung (changed and woken) at every arrival; what sleepers sleep on
    std::atomic<uint32_t> aborted;
    Rank rank[max_ranks];

    unsigned char *slot(unsigned set, unsigned index) {  // index `ranks` is the result
        return reinterpret_cast<unsigned char *>(this) + header_bytes + (size_t{set} * (ranks + 1) + index) * slot_bytes;
    }
};
static_assert(sizeof(Segment) <= header_bytes, "the header has outgrown its pages");

int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * int64_t{1000000000} + t.tv_nsec;
}

void futex_wake(std::atomic<uint32_t> &word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

void futex_wait(std::atomic<uint32_t> &word, uint32_t seen, int64_t nanoseconds) {
    const timespec t{static_cast<time_t>(nanoseconds / 1000000000), static_cast<long>(nanoseconds % 1000000000)};
    syscall(SYS_futex, &word, FUTEX_WAIT, seen, &t, nullptr, 0);
}

void ring(Segment &s) {
    s.bell.fetch_add(1);
    futex_wake(s.bell);
}

int meet(Segment &s, unsigned rank, int64_t deadline) {
    const uint32_t mine = s.rank[rank].arrived.fetch_add(1) + 1;
    ring(s);
    for (unsigned turn = 0;; ++turn) {
        const uint32_t bell = s.bell.load();
        bool all = true;
        for (unsigned r = 0; r < s.ranks && all; ++r) {
            all = static_cast<int32_t>(s.rank[r].arrived.load(std::memory_order_acquire) - mine) >= 0;
        }
        if (all) return done;
        if (s.aborted.load() != 0) return aborted;
        if (turn < 200) continue;  // peers on other cores come within a microsecond or two
        const int64_t left = deadline - now_ns();
        if (left <= 0) return timed_out;
        futex_wait(s.bell, bell, std::min<int64_t>(left, 100000000));
    }
}

struct Bf16 {
    uint16_t bits;
    operator float() const {
        const uint32_t wide = uint32_t{bits} << 16;
        float f;
        memcpy(&f, &wide, 4);
        return f;
    }
    Bf16() = default;
    explicit Bf16(float f) {
        uint32_t wide;
        memcpy(&wide, &f, 4);
        bits = f != f ? static_cast<uint16_t>(wide >> 16 | 0x40)
                      : static_cast<uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
    }
};

enum Op { sum = 0, mean = 1, least = 2, greatest = 3, product = 4 };

template <class A>
A combine(A a, A b, int op) {
    switch (op) {
        case least: return a < b || a != a ? a : b;  // a NaN stays, as in numpy.minimum
        case greatest: return a > b || a != a ? a : b;
        case product: return a * b;
        default: return a + b;
    }
}

// Elements [begin, end) of the result from the same elements of all slots; T is stored, A is what is computed in.
template <class T, class A, int op>
void reduce_part(Segment &s, unsigned set, size_t begin, size_t end) {
    constexpr size_t tile = 512;
    A total[tile];
    T *const result = reinterpret_cast<T *>(s.slot(set, s.ranks));
    for (size_t at = begin; at < end; at += tile) {
        const size_t n = std::min(tile, end - at);
        const T *in = reinterpret_cast<const T *>(s.slot(set, 0)) + at;
        for (size_t i = 0; i < n; ++i) total[i] = static_cast<A>(in[i]);
        for (unsigned r = 1; r < s.ranks; ++r) {
            in = reinterpret_cast<const T *>(s.slot(set, r)) + at;
            for (size_t i = 0; i < n; ++i) total[i] = combine<A>(total[i], static_cast<A>(in[i]), op);
        }
        if (op == mean) {
            // Signed even where it is computed unsigned (to wrap): an integer mean is cut towards zero.
            using S = std::conditional_t<std::is_signed_v<T> && std::is_integral_v<T>, std::make_signed_t<
                      std::conditional_t<std::is_integral_v<A>, A, int>>, A>;
            for (size_t i = 0; i < n; ++i) total[i] = static_cast<A>(static_cast<S>(total[i]) / static_cast<S>(s.ranks));
        }
        for (size_t i = 0; i < n; ++i) result[at + i] = static_cast<T>(total[i]);
    }
}

template <class T, class A>
void reduce_as(Segment &s, unsigned set, size_t begin, size_t end, int op) {
    switch (op) {
        case sum: return reduce_part<T, A, sum>(s, set, begin, end);
        case mean: return reduce_part<T, A, mean>(s, set, begin, end);
        case least: return reduce_part<T, A, least>(s, set, begin, end);
        case greatest: return reduce_part<T, A, greatest>(s, set, begin, end);
        default: return reduce_part<T, A, product>(s, set, begin, end);
    }
}

// Integers are summed and multiplied unsigned, which wraps, but ordered by their own sign.
template <class T>
void reduce_integer(Segment &s, unsigned set, size_t begin, size_t end, int op) {
    if (op == least || op == greatest) return reduce_as<T, T>(s, set, begin, end, op);
    reduce_as<T, uint64_t>(s, set, begin, end, op);
}

using Reduce = void (*)(Segment &, unsigned, size_t, size_t, int);
struct Type {
    size_t size;
    Reduce reduce;
};
// In the order of shared_reduce.py's DTYPES.
const Type types[] = {
    {1, reduce_integer<int8_t>},       {2, reduce_integer<int16_t>},      {4, reduce_integer<int32_t>},
    {8, reduce_integer<int64_t>},      {1, reduce_integer<uint8_t>},      {2, reduce_integer<uint16_t>},
    {4, reduce_integer<uint32_t>},     {8, reduce_integer<uint64_t>},     {2, reduce_as<_Float16, float>},
    {2, reduce_as<Bf16, float>},       {4, reduce_as<float, float>},      {8, reduce_as<double, double>},
};

}  // namespace

extern "C" {

uint64_t hearth_reduce_bytes(unsigned ranks) {
    return ranks == 0 || ranks > max_ranks ? 0 : header_bytes + uint64_t{2} * (ranks + 1) * slot_bytes;
}

void hearth_reduce_init(void *base, unsigned ranks) { static_cast<Segment *>(base)->ranks = ranks; }

unsigned hearth_reduce_ranks(const void *base) { return static_cast<const Segment *>(base)->ranks; }

void hearth_reduce_abort(void *base) {
    Segment &s = *static_cast<Segment *>(base);
    s.aborted.store(1);
    ring(s);
}

// Bit r is set where rank r has come to fewer meetings than this one; of the first 64 ranks.
uint64_t hearth_reduce_missing(void *base, unsigned rank) {
    Segment &s = *static_cast<Segment *>(base);
    const uint32_t mine = s.rank[rank].arrived.load();
    uint64_t missing = 0;
    for (unsigned r = 0; r < s.ranks && r < 64; ++r) {
        if (static_cast<int32_t>(s.rank[r].arrived.load() - mine) < 0) missing |= uint64_t{1} << r;
    }
    return missing;
}

int hearth_all_reduce(void *base, unsigned rank, const void *src, void *dst, uint64_t count, unsigned dtype, unsigned op,
                      int64_t timeout_ns) {
    Segment &s = *static_cast<Segment *>(base);
    if (rank >= s.ranks || dtype >= sizeof types / sizeof types[0] || op > product) return invalid;
    const Type &type = types[dtype];
    const int64_t begun = now_ns();
    const int64_t deadline = timeout_ns < 0 || timeout_ns > INT64_MAX - begun ? INT64_MAX : begun + timeout_ns;
    Rank &me = s.rank[rank];
    me.count = count;
    me.dtype = dtype;
    me.op = op;
    const size_t per_chunk = slot_bytes / type.size;
    uint64_t at = 0;
    unsigned set = 0;
    do {
        const size_t n = static_cast<size_t>(std::min<uint64_t>(per_chunk, count - at));
        memcpy(s.slot(set, rank), static_cast<const unsigned char *>(src) + at * type.size, n * type.size);
        if (const int failed = meet(s, rank, deadline)) return failed;
        if (at == 0) {
            for (unsigned r = 0; r < s.ranks; ++r) {
                if (s.rank[r].count != count || s.rank[r].dtype != dtype || s.rank[r].op != op) return mismatch;
            }
        }
        // Parts in whole cache lines, so that no two ranks write to one.
        const size_t line = 64 / type.size, lines = (n + line - 1) / line;
        const size_t from = std::min(n, lines * rank / s.ranks * line), to = std::min(n, lines * (rank + 1) / s.ranks * line);
        type.reduce(s, set, from, to, static_cast<int>(op));
        if (const int failed = meet(s, rank, deadline)) return failed;
        memcpy(static_cast<unsigned char *>(dst) + at * type.size, s.slot(set, s.ranks), n * type.size);
        at += n;
        set ^= 1;
    } while (at < count);
    return done;
}

}
