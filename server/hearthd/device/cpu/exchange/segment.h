// The memory that the ranks of one communicator share: a header, the slots of collectives, and a mailbox for each
// ordered pair of ranks. Untouched pages cost nothing, so all n * n mailboxes exist from the start.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <atomic>

namespace hearth {

constexpr unsigned max_ranks = 128;
constexpr size_t slot_bytes = 512 * 1024;
constexpr size_t ring_bytes = 256 * 1024;
constexpr size_t header_bytes = 64 * 1024;

// Size of each dtype in bytes, in the order of libraries.py's DTYPES.
constexpr unsigned sizes[] = {1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 1, 1};
constexpr unsigned dtypes = sizeof sizes / sizeof sizes[0];

enum Status : int { done = 0, timed_out = 1, aborted = 2, mismatch = 3, invalid = 4 };

// In the order of libraries.py's KINDS.
enum Kind : uint32_t {
    all_reduce, reduce, broadcast, all_gather, reduce_scatter, all_to_all, gather, scatter, send, recv, barrier, kinds
};

// One operation as a rank requests it; laid out as shared_exchange.py's _Operation.
struct Operation {
    uint64_t source, destination, count;
    uint64_t reduce;  // the function that combines elements, for kinds that reduce: see reduce.h
    uint64_t scale;   // the function that multiplies by the factor, for a premultiplied sum: see reduce.h
    uint64_t factor;  // one element of the dtype, in its first bytes
    uint32_t kind, dtype, op, root, peer;
};

// The parameters that must be equal on all ranks.
struct Signature {
    uint64_t count;
    uint32_t kind, dtype, op, root;

    bool operator==(const Signature &o) const {
        return count == o.count && kind == o.kind && dtype == o.dtype && op == o.op && root == o.root;
    }
};

// The error of a call; laid out as shared_exchange.py's _Report.
struct Report {
    Signature theirs;                  // mismatch: the request of the other rank
    uint32_t operation;                // index in the call
    uint32_t rank;                     // mismatch: that rank
    uint64_t missing[max_ranks / 64];  // timed_out: bit r is set if rank r has not arrived
};

struct Rank {
    alignas(64) std::atomic<uint32_t> arrived;  // number of meetings at which this rank has arrived; wraps
    uint32_t set;                               // the set of slots that its next round uses; alternates
    alignas(64) std::atomic<uint32_t> bell;     // futex; changes with everything that this rank may be waiting for
    std::atomic<uint32_t> waiting;
    std::atomic<uint32_t> left;                 // 1 once the rank has left: its waits fail
    alignas(64) Signature asked[2];             // that of the operation whose first round used this set of slots
};

// Bytes on their way from one rank to another. Both counters only grow; the bytes between them are in the ring.
struct Mailbox {
    alignas(64) std::atomic<uint64_t> written;
    alignas(64) std::atomic<uint64_t> taken;
    alignas(4096) unsigned char ring[ring_bytes];
};

struct Segment {
    uint64_t abi;  // processes with another build of the runtime do not join
    unsigned char nonce[16];
    uint32_t ranks;
    std::atomic<uint32_t> aborted;
    Rank rank[max_ranks];

    unsigned char *slot(unsigned set, unsigned index) {  // index `ranks` is the result of a reduction
        return bytes() + header_bytes + (size_t{set} * (ranks + 1) + index) * slot_bytes;
    }
    Mailbox &mailbox(unsigned from, unsigned to) {
        return reinterpret_cast<Mailbox *>(slot(2, 0))[size_t{from} * ranks + to];
    }
    static uint64_t size(unsigned ranks) {
        return header_bytes + 2 * (uint64_t{ranks} + 1) * slot_bytes + uint64_t{ranks} * ranks * sizeof(Mailbox);
    }

private:
    unsigned char *bytes() { return reinterpret_cast<unsigned char *>(this); }
};
static_assert(sizeof(Segment) <= header_bytes, "the header has outgrown its pages");
static_assert(slot_bytes / max_ranks % 64 == 0, "a slot is cut into whole cache lines for any number of ranks");

}  // namespace hearth
