// The neighbours of a thread's items in a blocked arrangement.
#pragma once
#include "../hearth/macros_begin.h"
#include <cub/util_type.cuh>

namespace cub {
namespace hearth_details {

template <class T, int Threads>
class Neighbours {
    struct Ends {
        T first, last;
    };

public:
    // `before` is the last item of the previous thread, `behind` the first item of the next one. At the ends of the
    // block they are not changed.
    template <int Items>
    static void fetch(const T (&items)[Items], T &before, T &behind) {
        Ends own{items[0], items[Items - 1]};
        const unsigned rank = hearth::thread_rank();
        const hearth::BlockMeeting<Threads, Ends> meeting(own);
        if (rank > 0) before = meeting.of(rank - 1).last;
        if (rank + 1 < Threads) behind = meeting.of(rank + 1).first;
    }
    static bool is_first() { return hearth::thread_rank() == 0; }
    static bool is_last() { return hearth::thread_rank() + 1 == Threads; }
};

// An operator that takes the index of its second item, or none.
template <class Op, class T>
inline auto apply_with_index(Op &op, const T &a, const T &b, int index) {
    if constexpr (std::is_invocable<Op &, const T &, const T &, int>::value) return op(a, b, index);
    else return op(a, b);
}

}  // namespace hearth_details
}  // namespace cub
#include "../hearth/macros_end.h"
