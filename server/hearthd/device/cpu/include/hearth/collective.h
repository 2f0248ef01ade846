// Meetings of the threads of a block, or of the lanes of a warp, in which they see each other's local variables: all of
// them run in one address space, so that a record on the caller's stack is passed by its address.
#pragma once

namespace hearth {

static __thread void *block_records[1024];  // of the threads of the block, by rank

// The records of all threads are readable during its lifetime. Each thread has stored its own before the first thread
// reads it, and no thread leaves before the last has read.
template <unsigned Threads, class Record>
class BlockMeeting {
public:
    explicit BlockMeeting(Record &own) {
        block_records[thread_rank() % 1024] = &own;
        if (block_sync(Vote::count, 1) != static_cast<int>(Threads)) {
            trap("cub: not as many threads take part as the template's block dimensions say");
        }
    }
    ~BlockMeeting() { block_sync(Vote::none, 0); }
    BlockMeeting(const BlockMeeting &) = delete;
    BlockMeeting &operator=(const BlockMeeting &) = delete;
    static bool leads() { return thread_rank() == 0; }
    static Record &of(unsigned rank) { return *static_cast<Record *>(block_records[rank]); }
};

// A logical warp. If its size is no power of two, it begins at lane 0.
template <unsigned Size>
struct LogicalWarp {
    static_assert(Size >= 1 && Size <= 32, "a logical warp has 1 to 32 lanes");
    static constexpr bool is_regular = (Size & (Size - 1)) == 0;
    static constexpr uint32_t low = Size == 32 ? ~uint32_t{0} : (uint32_t{1} << (Size % 32)) - 1;
    static unsigned first() { return is_regular ? lane_id() / Size * Size : 0; }
    static unsigned rank() { return lane_id() % Size; }
    static uint32_t mask() { return low << first(); }
};

// The records of the lanes that met, in order; `at(i)` is null for a lane that has returned.
template <class Record, unsigned Size>
class LaneRecords {
public:
    LaneRecords(const WarpLanes &lanes, uint32_t mask)
        : lanes_(lanes), mask_(mask),
          first_(LogicalWarp<Size>::is_regular ? static_cast<unsigned>(__builtin_ctz(mask)) / Size * Size : 0) {}
    Record *at(unsigned rank) const {
        const unsigned lane = first_ + rank;
        return (mask_ >> lane & 1) != 0 ? reinterpret_cast<Record *>(lanes_.value[lane]) : nullptr;
    }

private:
    const WarpLanes &lanes_;
    const uint32_t mask_;
    const unsigned first_;
};

// `Record::finish` runs once, with the records of all lanes of the logical warp.
template <unsigned Size, class Record>
inline void warp_meet(Record &own) {
    warp_collective(LogicalWarp<Size>::mask(), reinterpret_cast<uint64_t>(&own), 0,
                    [](WarpLanes &lanes, uint32_t mask) { Record::finish(LaneRecords<Record, Size>(lanes, mask)); });
}

}  // namespace hearth
