#include "mailbox.h"

#include <string.h>

#include <algorithm>

#include "reduce.h"

namespace hearth {
namespace {

constexpr uint64_t chunk_bytes = 64 * 1024;  // a quarter of a ring, so that both ends have something to do

// Ahead of each message: what the receiver has to expect.
struct Header {
    uint64_t count;
    uint32_t dtype, unused;
};

void write(Mailbox &box, uint64_t at, const void *data, size_t bytes) {
    const size_t begin = at % ring_bytes, first = std::min(bytes, ring_bytes - begin);
    memcpy(box.ring + begin, data, first);
    memcpy(box.ring, static_cast<const unsigned char *>(data) + first, bytes - first);
}

void read(const Mailbox &box, uint64_t at, void *data, size_t bytes) {
    const size_t begin = at % ring_bytes, first = std::min(bytes, ring_bytes - begin);
    memcpy(data, box.ring + begin, first);
    memcpy(static_cast<unsigned char *>(data) + first, box.ring, bytes - first);
}

}  // namespace

Messages::Messages(Segment &s, unsigned rank, const Operation *operations, unsigned count)
    : s_(s), rank_(rank), operations_(operations) {
    constexpr size_t none = ~size_t{0};
    std::vector<size_t> lane_of;
    for (unsigned i = 0; i < count; ++i) {
        const Operation &o = operations[i];
        if (o.kind != send && o.kind != recv) continue;
        const bool sending = o.kind == send;
        if (lane_of.empty()) lane_of.assign(2 * s.ranks, none);
        size_t &lane = lane_of[2 * o.peer + sending];
        if (lane == none) {
            lane = lanes_.size();
            Mailbox &box = sending ? s.mailbox(rank, o.peer) : s.mailbox(o.peer, rank);
            lanes_.push_back(Lane{box, o.peer, sending, false, 0, 0, {}});
        }
        lanes_[lane].operations.push_back(i);
    }
}

Progress Messages::step(Report &report) {
    bool all = true, moved = false;
    for (Lane &lane : lanes_) {
        if (lane.finished()) continue;
        const Progress progress = lane.sending ? push(lane) : pull(lane, report);
        if (progress == Progress::failed) return progress;
        moved |= progress == Progress::moved;
        all &= lane.finished();
    }
    return all ? Progress::finished : moved ? Progress::moved : Progress::nothing;
}

Progress Messages::push(Lane &lane) {
    const Operation &o = operations_[lane.operations[lane.current]];
    const uint64_t total = o.count * types[o.dtype].size;
    uint64_t written = lane.box.written.load(std::memory_order_relaxed);
    uint64_t room = ring_bytes - std::min<uint64_t>(ring_bytes, written - lane.box.taken.load(std::memory_order_acquire));
    if (!lane.begun) {
        const Header header{o.count, o.dtype, 0};
        if (room < sizeof header) return Progress::nothing;
        write(lane.box, written, &header, sizeof header);
        written += sizeof header;
        room -= sizeof header;
    }
    const uint64_t bytes = std::min({total - lane.moved, room, chunk_bytes});
    if (lane.begun && bytes == 0) return Progress::nothing;
    write(lane.box, written, reinterpret_cast<const unsigned char *>(o.source) + lane.moved, bytes);
    lane.box.written.store(written + bytes, std::memory_order_release);
    advance(lane, bytes, total);
    return Progress::moved;
}

Progress Messages::pull(Lane &lane, Report &report) {
    const Operation &o = operations_[lane.operations[lane.current]];
    const uint64_t total = o.count * types[o.dtype].size;
    uint64_t taken = lane.box.taken.load(std::memory_order_relaxed);
    uint64_t there = std::min<uint64_t>(ring_bytes, lane.box.written.load(std::memory_order_acquire) - taken);
    if (!lane.begun) {
        Header header;
        if (there < sizeof header) return Progress::nothing;
        read(lane.box, taken, &header, sizeof header);
        if (header.count != o.count || header.dtype != o.dtype) {
            report.operation = lane.operations[lane.current];
            report.rank = lane.peer;
            report.theirs = {header.count, send, header.dtype, 0, 0};
            return Progress::failed;
        }
        taken += sizeof header;
        there -= sizeof header;
    }
    const uint64_t bytes = std::min({total - lane.moved, there, chunk_bytes});
    if (lane.begun && bytes == 0) return Progress::nothing;
    read(lane.box, taken, reinterpret_cast<unsigned char *>(o.destination) + lane.moved, bytes);
    lane.box.taken.store(taken + bytes, std::memory_order_release);
    advance(lane, bytes, total);
    return Progress::moved;
}

void Messages::advance(Lane &lane, uint64_t bytes, uint64_t total) {
    if (lane.peer != rank_) ring(s_, lane.peer);
    lane.begun = true;
    lane.moved += bytes;
    if (lane.moved < total) return;
    ++lane.current;
    lane.begun = false;
    lane.moved = 0;
}

void Messages::name_missing(Report &report) const {
    report.operation = ~0u;
    for (const Lane &lane : lanes_) {
        if (lane.finished()) continue;
        report.missing[lane.peer / 64] |= uint64_t{1} << lane.peer % 64;
        report.operation = std::min(report.operation, lane.operations[lane.current]);
    }
}

}  // namespace hearth
