// Collectives between processes over one shared segment. In each round every rank copies a chunk of its data to its own
// slot, all ranks meet, and every rank reads its part from the slots of all ranks. Two sets of slots alternate from
// round to round, so one meeting per round is enough: a rank that arrives at the next meeting has finished reading the
// previous set. Reductions combine all slots in rank order, so all ranks get the same bits.
#include <string.h>

#include "mailbox.h"
#include "meeting.h"
#include "reduce.h"
#include "segment.h"

namespace hearth {
namespace {

Reduce reduction(const Operation &o) { return reinterpret_cast<Reduce>(o.reduce); }

// Multiplies the elements in this rank's slot by the factor of a premultiplied sum, before the ranks meet.
void premultiply(const Operation &o, void *elements, size_t n) {
    if (o.scale != 0) reinterpret_cast<Scale>(o.scale)(elements, n, &o.factor);
}

class Call {
public:
    Call(Segment &s, unsigned rank, const Operation *operations, unsigned count, int64_t timeout_ns, Report &report)
        : s_(s), me_(s.rank[rank]), rank_(rank), timeout_ns_(timeout_ns), report_(report),
          messages_(s, rank, operations, count) {}

    Status collective(const Operation &o);
    Status messages() {
        const Status status = wait(s_, rank_, timeout_ns_, [this] { return messages_.step(report_); });
        if (status == timed_out) messages_.name_missing(report_);
        return status;
    }

private:
    // Copy elements [at, at + n) to and from the slots of a set.
    using Put = Callable<void(unsigned set, uint64_t at, size_t n)>;
    using Take = Callable<Status(unsigned set, uint64_t at, size_t n)>;

    Status rounds(const Operation &o, uint64_t per_round, Put put, Take take);
    Status meet();
    Status agree(const Signature &mine);
    Status reduce_all(const Operation &o, bool wanted);

    Segment &s_;
    Rank &me_;
    const unsigned rank_;
    const int64_t timeout_ns_;
    Report &report_;
    Messages messages_;
};

Status Call::meet() {
    const Status status = hearth::meet(s_, rank_, timeout_ns_, [this] { return messages_.step(report_); });
    if (status != timed_out) return status;
    const uint32_t meeting = me_.arrived.load();
    for (unsigned r = 0; r < s_.ranks; ++r) {
        if (static_cast<int32_t>(s_.rank[r].arrived.load() - meeting) < 0) report_.missing[r / 64] |= uint64_t{1} << r % 64;
    }
    return status;
}

// After the first meeting of an operation. Reports the first rank whose request differs from this rank's.
Status Call::agree(const Signature &mine) {
    for (unsigned r = 0; r < s_.ranks; ++r) {
        const Signature &theirs = s_.rank[r].asked[me_.set];
        if (theirs == mine) continue;
        report_.rank = r;
        report_.theirs = theirs;
        return mismatch;
    }
    return done;
}

// Calls `put(set, at, n)` before and `take(set, at, n)` after the ranks meet, for elements [at, at + n) of `count`.
Status Call::rounds(const Operation &o, uint64_t per_round, Put put, Take take) {
    const Signature mine{o.count, o.kind, o.dtype, o.op, o.root};
    uint64_t at = 0;
    do {
        const size_t n = static_cast<size_t>(smaller(per_round, o.count - at));
        const unsigned set = me_.set & 1;
        put(set, at, n);
        if (at == 0) me_.asked[set] = mine;
        if (const Status failed = meet()) return failed;
        if (at == 0) {
            if (const Status failed = agree(mine)) return failed;
        }
        if (const Status failed = take(set, at, n)) return failed;
        me_.set = set ^ 1;
        at += n;
    } while (at < o.count);
    return done;
}

Status Call::collective(const Operation &o) {
    const size_t size = sizes[o.dtype];
    const unsigned ranks = s_.ranks;
    auto *const source = reinterpret_cast<const unsigned char *>(o.source);
    auto *const destination = reinterpret_cast<unsigned char *>(o.destination);
    // A chunk for each rank in one slot, in whole cache lines: block `r` of `count` elements starts at r * count.
    const uint64_t whole = slot_bytes / size, share = slot_bytes / ranks / 64 * 64 / size;
    const auto block = [&](unsigned r, uint64_t at) { return (r * o.count + at) * size; };
    const auto piece = [&](unsigned set, unsigned from, unsigned to) { return s_.slot(set, from) + to * share * size; };

    const auto put_own = [&](unsigned set, uint64_t at, size_t n) {
        memcpy(s_.slot(set, rank_), source + at * size, n * size);
    };
    const auto put_blocks = [&](unsigned set, uint64_t at, size_t n) {
        for (unsigned r = 0; r < ranks; ++r) {
            memcpy(piece(set, rank_, r), source + block(r, at), n * size);
            premultiply(o, piece(set, rank_, r), n);
        }
    };
    const auto nothing = [](unsigned, uint64_t, size_t) { return done; };

    switch (o.kind) {
        case all_reduce: return reduce_all(o, true);
        case reduce: return reduce_all(o, rank_ == o.root);
        case reduce_scatter: {
            const auto take = [&](unsigned set, uint64_t at, size_t n) {
                const void *inputs[max_ranks];
                for (unsigned r = 0; r < ranks; ++r) inputs[r] = piece(set, r, rank_);
                reduction(o)(inputs, ranks, destination + at * size, 0, n, o.op);
                return done;
            };
            return rounds(o, share, put_blocks, take);
        }
        case all_to_all: {
            const auto take = [&](unsigned set, uint64_t at, size_t n) {
                for (unsigned r = 0; r < ranks; ++r) memcpy(destination + block(r, at), piece(set, r, rank_), n * size);
                return done;
            };
            return rounds(o, share, put_blocks, take);
        }
        case broadcast: {
            const auto put = [&](unsigned set, uint64_t at, size_t n) {
                if (rank_ == o.root) put_own(set, at, n);
            };
            const auto take = [&](unsigned set, uint64_t at, size_t n) {
                const bool written = rank_ != o.root || (destination && destination != source);
                if (written) memcpy(destination + at * size, s_.slot(set, o.root), n * size);
                return done;
            };
            return rounds(o, whole, put, take);
        }
        case all_gather:
        case gather: {
            const auto take = [&](unsigned set, uint64_t at, size_t n) {
                for (unsigned r = 0; r < ranks; ++r) memcpy(destination + block(r, at), s_.slot(set, r), n * size);
                return done;
            };
            if (o.kind == all_gather || rank_ == o.root) return rounds(o, whole, put_own, take);
            return rounds(o, whole, put_own, nothing);
        }
        case scatter: {  // the root is the only sender, so it uses the slots of all ranks
            const auto put = [&](unsigned set, uint64_t at, size_t n) {
                if (rank_ != o.root) return;
                for (unsigned r = 0; r < ranks; ++r) memcpy(s_.slot(set, r), source + block(r, at), n * size);
            };
            const auto take = [&](unsigned set, uint64_t at, size_t n) {
                memcpy(destination + at * size, s_.slot(set, rank_), n * size);
                return done;
            };
            return rounds(o, whole, put, take);
        }
        default: return rounds(o, 1, [](unsigned, uint64_t, size_t) {}, nothing);  // a barrier
    }
}

// Each rank combines its part of a chunk. After a second meeting, the ranks that want the result copy the whole chunk.
Status Call::reduce_all(const Operation &o, bool wanted) {
    const size_t size = sizes[o.dtype];
    const auto put = [&](unsigned set, uint64_t at, size_t n) {
        memcpy(s_.slot(set, rank_), reinterpret_cast<const unsigned char *>(o.source) + at * size, n * size);
        premultiply(o, s_.slot(set, rank_), n);
    };
    const auto take = [&](unsigned set, uint64_t at, size_t n) {
        // Parts are whole cache lines, so that no two ranks write to the same line.
        const size_t line = 64 / size, lines = (n + line - 1) / line;
        const size_t from = smaller(n, lines * rank_ / s_.ranks * line);
        const size_t to = smaller(n, lines * (rank_ + 1) / s_.ranks * line);
        const void *inputs[max_ranks];
        for (unsigned r = 0; r < s_.ranks; ++r) inputs[r] = s_.slot(set, r);
        unsigned char *const result = s_.slot(set, s_.ranks);
        reduction(o)(inputs, s_.ranks, result, from, to, o.op);
        if (const Status failed = meet()) return failed;
        if (wanted) memcpy(reinterpret_cast<unsigned char *>(o.destination) + at * size, result, n * size);
        return done;
    };
    return rounds(o, slot_bytes / size, put, take);
}

bool valid(const Segment &s, const Operation &o) {
    const bool combines = o.kind == all_reduce || o.kind == reduce || o.kind == reduce_scatter;
    return o.kind < kinds && o.dtype < dtypes && o.op < ops && o.root < s.ranks && o.peer < s.ranks &&
           (o.reduce != 0) == combines && (o.scale != 0) == (combines && o.op == premultiplied_sum);
}

}  // namespace
}  // namespace hearth

extern "C" {

uint64_t hearth_segment_bytes(unsigned ranks) {
    return ranks == 0 || ranks > hearth::max_ranks ? 0 : hearth::Segment::size(ranks);
}

void hearth_segment_init(void *base, unsigned ranks, const void *nonce) {
    auto &s = *static_cast<hearth::Segment *>(base);
    s.abi = HEARTH_ABI_HASH;
    s.ranks = ranks;
    memcpy(s.nonce, nonce, sizeof s.nonce);
}

// Returns 0 if the segment was made with this nonce for `ranks` ranks, 1 if another build made it, 2 otherwise.
int hearth_segment_differs(const void *base, unsigned ranks, const void *nonce) {
    const auto &s = *static_cast<const hearth::Segment *>(base);
    if (memcmp(s.nonce, nonce, sizeof s.nonce) != 0) return 2;
    if (s.abi != HEARTH_ABI_HASH) return 1;
    return s.ranks == ranks ? 0 : 2;
}

void hearth_segment_abort(void *base) { hearth::abort(*static_cast<hearth::Segment *>(base)); }

void hearth_segment_leave(void *base, unsigned rank) { hearth::leave(*static_cast<hearth::Segment *>(base), rank); }

// Runs all operations as one group: collectives in their order, messages during every wait. Blocks on peers.
// `timeout_ns` limits the time without progress; negative: no limit.
int hearth_exchange(void *base, unsigned rank, const hearth::Operation *operations, unsigned count, int64_t timeout_ns,
                    hearth::Report *report) {
    auto &s = *static_cast<hearth::Segment *>(base);
    if (rank >= s.ranks) return hearth::invalid;
    for (unsigned i = 0; i < count; ++i) {
        if (!hearth::valid(s, operations[i])) return hearth::invalid;
    }
    hearth::Call call(s, rank, operations, count, timeout_ns, *report);
    for (unsigned i = 0; i < count; ++i) {
        if (operations[i].kind == hearth::send || operations[i].kind == hearth::recv) continue;
        report->operation = i;
        if (const hearth::Status failed = call.collective(operations[i])) return failed;
    }
    return call.messages();
}

}
