// The sends and receives of one call, which make progress together: whatever their order in the lists of the ranks, no
// two of them wait for each other. Those between the same two ranks go in the order of the list.
#pragma once
#include <vector>

#include "meeting.h"
#include "segment.h"

namespace hearth {

class Messages {
public:
    Messages(Segment &s, unsigned rank, const Operation *operations, unsigned count);

    // Moves what can be moved now: `moved`, `nothing`, `finished` when all are through, `failed` on a mismatch.
    Progress step(Report &report);
    // Into `report`: the first operation that is not through, and the ranks that it and others are waiting for.
    void name_missing(Report &report) const;

private:
    struct Lane {  // from or to one peer
        Mailbox &box;
        uint32_t peer;
        bool sending, begun;  // begun: the header of the current message has been written, or read
        uint64_t moved;       // bytes of the current message
        size_t current;
        std::vector<uint32_t> operations;  // indices in the call

        bool finished() const { return current == operations.size(); }
    };

    Progress push(Lane &lane);
    Progress pull(Lane &lane, Report &report);
    void advance(Lane &lane, uint64_t bytes, uint64_t total);

    Segment &s_;
    const unsigned rank_;
    const Operation *const operations_;
    std::vector<Lane> lanes_;
};

}  // namespace hearth
