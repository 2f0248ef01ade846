#include "mailbox.h"

#include <string.h>

namespace hearth {
namespace {

constexpr uint64_t chunk_bytes = 64 * 1024;  // a quarter of a ring, so that both ends can work concurrently

// Precedes each message, for the receiver to check.
struct Header {
    uint64_t count;
    uint32_t dtype, unused;
};

void write(Mailbox &box, uint64_t at, const void *data, size_t bytes) {
    const size_t begin = at % ring_bytes, first = smaller(bytes, ring_bytes - begin);
    memcpy(box.ring + begin, data, first);
    memcpy(box.ring, static_cast<const unsigned char *>(data) + first, bytes - first);
}

void read(const Mailbox &box, uint64_t at, void *data, size_t bytes) {
    const size_t begin = at % ring_bytes, first = smaller(bytes, ring_bytes - begin);
    memcpy(data, box.ring + begin, first);
    memcpy(static_cast<unsigned char *>(data) + first, box.ring, bytes - first);
}

}  // namespace

Messages::Messages(Segment &s, unsigned rank, const Operation *operations, unsigned count)
    : s_(s), rank_(rank), operations_(operations) {
    uint32_t lane_of[2 * max_ranks];
    for (unsigned i = 0; i < count; ++i) {
        const Operation &o = operations[i];
        if (o.kind != send && o.kind != recv) continue;
        if (lanes_ == nullptr) {
            lanes_ = new Lane[smaller(count - i, 2 * s.ranks)];
            next_ = new uint32_t[count];
            for (uint32_t &lane : lane_of) lane = none;
        }
        const bool sending = o.kind == send;
        uint32_t &lane = lane_of[2 * o.peer + sending];
        next_[i] = none;
        if (lane == none) {
            lane = lane_count_++;
            Mailbox &box = sending ? s.mailbox(rank, o.peer) : s.mailbox(o.peer, rank);
            lanes_[lane] = Lane{&box, o.peer, sending, false, 0, i, i};
        } else {
            next_[lanes_[lane].last] = i;
            lanes_[lane].last = i;
        }
    }
}

Messages::~Messages() {
    delete[] lanes_;
    delete[] next_;
}

Progress Messages::step(Report &report) {
    bool all = true, moved = false;
    for (unsigned i = 0; i < lane_count_; ++i) {
        Lane &lane = lanes_[i];
        if (lane.finished()) continue;
        const Progress progress = lane.sending ? push(lane) : pull(lane, report);
        if (progress == Progress::failed) return progress;
        moved |= progress == Progress::moved;
        all &= lane.finished();
    }
    return all ? Progress::finished : moved ? Progress::moved : Progress::nothing;
}

Progress Messages::push(Lane &lane) {
    const Operation &o = operations_[lane.current];
    const uint64_t total = o.count * sizes[o.dtype];
    uint64_t written = lane.box->written.load(std::memory_order_relaxed);
    uint64_t room = ring_bytes - smaller<uint64_t>(ring_bytes, written - lane.box->taken.load(std::memory_order_acquire));
    if (!lane.begun) {
        const Header header{o.count, o.dtype, 0};
        if (room < sizeof header) return Progress::nothing;
        write(*lane.box, written, &header, sizeof header);
        written += sizeof header;
        room -= sizeof header;
    }
    const uint64_t bytes = smaller(total - lane.moved, smaller(room, chunk_bytes));
    if (lane.begun && bytes == 0) return Progress::nothing;
    write(*lane.box, written, reinterpret_cast<const unsigned char *>(o.source) + lane.moved, bytes);
    lane.box->written.store(written + bytes, std::memory_order_release);
    advance(lane, bytes, total);
    return Progress::moved;
}

Progress Messages::pull(Lane &lane, Report &report) {
    const Operation &o = operations_[lane.current];
    const uint64_t total = o.count * sizes[o.dtype];
    uint64_t taken = lane.box->taken.load(std::memory_order_relaxed);
    uint64_t there = smaller<uint64_t>(ring_bytes, lane.box->written.load(std::memory_order_acquire) - taken);
    if (!lane.begun) {
        Header header;
        if (there < sizeof header) return Progress::nothing;
        read(*lane.box, taken, &header, sizeof header);
        if (header.count != o.count || header.dtype != o.dtype) {
            report.operation = lane.current;
            report.rank = lane.peer;
            report.theirs = {header.count, send, header.dtype, 0, 0};
            return Progress::failed;
        }
        taken += sizeof header;
        there -= sizeof header;
    }
    const uint64_t bytes = smaller(total - lane.moved, smaller(there, chunk_bytes));
    if (lane.begun && bytes == 0) return Progress::nothing;
    read(*lane.box, taken, reinterpret_cast<unsigned char *>(o.destination) + lane.moved, bytes);
    lane.box->taken.store(taken + bytes, std::memory_order_release);
    advance(lane, bytes, total);
    return Progress::moved;
}

void Messages::advance(Lane &lane, uint64_t bytes, uint64_t total) {
    if (lane.peer != rank_) ring(s_, lane.peer);
    lane.begun = true;
    lane.moved += bytes;
    if (lane.moved < total) return;
    lane.current = next_[lane.current];
    lane.begun = false;
    lane.moved = 0;
}

void Messages::name_missing(Report &report) const {
    report.operation = ~0u;
    for (unsigned i = 0; i < lane_count_; ++i) {
        const Lane &lane = lanes_[i];
        if (lane.finished()) continue;
        report.missing[lane.peer / 64] |= uint64_t{1} << lane.peer % 64;
        report.operation = smaller(report.operation, lane.current);
    }
}

}  // namespace hearth
