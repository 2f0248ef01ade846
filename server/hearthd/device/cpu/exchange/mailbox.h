// The sends and receives of one call, which make progress together: whatever their order in the lists of the ranks, no
// two of them wait for each other. Those between the same two ranks are done in the order of the list.
#pragma once
#include "meeting.h"
#include "segment.h"

namespace hearth {

class Messages {
public:
    Messages(Segment &s, unsigned rank, const Operation *operations, unsigned count);
    Messages(const Messages &) = delete;
    ~Messages();

    // Moves the bytes that can be moved now. Returns `finished` when all messages are complete, `failed` on a mismatch.
    Progress step(Report &report);
    // Reports the first operation that is not complete, and the ranks that incomplete operations wait for.
    void name_missing(Report &report) const;

private:
    static constexpr uint32_t none = ~0u;

    struct Lane {  // from or to one peer
        Mailbox *box;
        uint32_t peer;
        bool sending, begun;     // begun: the header of the current message has been written, or read
        uint64_t moved;          // bytes of the current message
        uint32_t current, last;  // indices in the call

        bool finished() const { return current == none; }
    };

    Progress push(Lane &lane);
    Progress pull(Lane &lane, Report &report);
    void advance(Lane &lane, uint64_t bytes, uint64_t total);

    Segment &s_;
    const unsigned rank_;
    const Operation *const operations_;
    unsigned lane_count_ = 0;
    Lane *lanes_ = nullptr;
    uint32_t *next_ = nullptr;  // the next message of the same lane, by index in the call
};

}  // namespace hearth
