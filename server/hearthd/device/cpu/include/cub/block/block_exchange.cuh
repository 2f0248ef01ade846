// cub::BlockExchange.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/hearth_arrangement.cuh>

namespace cub {

template <class T, int BLOCK_DIM_X, int ITEMS_PER_THREAD, bool WARP_TIME_SLICING = false, int BLOCK_DIM_Y = 1,
          int BLOCK_DIM_Z = 1>
class BlockExchange {
    static constexpr int Threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z, Items = ITEMS_PER_THREAD;
    template <class Out>
    struct Record {
        T items[Items];
        Out *output;
    };

    static int thread() { return static_cast<int>(hearth::thread_rank()); }
    // The i-th item of a thread is the item at index `to` of all items; `from` gives the present location of each item.
    template <class Out, class From, class To>
    static void gather(const T (&input)[Items], Out (&output)[Items], From from, To to) {
        Record<Out> own;
        for (int i = 0; i < Items; ++i) own.items[i] = input[i];
        const hearth::BlockMeeting<Threads, Record<Out>> meeting(own);
        for (int i = 0; i < Items; ++i) {
            const auto place = from(to(thread(), i));
            output[i] = meeting.of(static_cast<unsigned>(place.thread)).items[place.item];
        }
    }
    struct Place {
        int thread, item;
    };
    static Place in_blocked(int at) { return {at / Items, at % Items}; }
    static Place in_striped(int at) { return {at % Threads, at / Threads}; }
    static Place in_warp_striped(int at) {
        const int warp = at / (32 * Items), within = at % (32 * Items);
        return {warp * 32 + within % 32, within / 32};
    }
    template <class Out, class Rank, class Where, class Valid>
    static void scatter(const T (&input)[Items], Out (&output)[Items], Rank (&ranks)[Items], Where where, Valid valid) {
        T copy[Items];
        for (int i = 0; i < Items; ++i) copy[i] = input[i];
        Record<Out> own;
        own.output = output;
        const hearth::BlockMeeting<Threads, Record<Out>> meeting(own);
        for (int i = 0; i < Items; ++i) {
            if (!valid(i)) continue;
            const Place place = where(static_cast<int>(ranks[i]));
            meeting.of(static_cast<unsigned>(place.thread)).output[place.item] = copy[i];
        }
    }

public:
    using TempStorage = hearth_details::Room;

    BlockExchange() {}
    BlockExchange(TempStorage &) {}

    template <class Out>
    void StripedToBlocked(const T (&input)[Items], Out (&output)[Items]) {
        gather(input, output, in_striped, hearth_details::blocked<Items>);
    }
    void StripedToBlocked(T (&items)[Items]) { StripedToBlocked(items, items); }
    template <class Out>
    void BlockedToStriped(const T (&input)[Items], Out (&output)[Items]) {
        gather(input, output, in_blocked, hearth_details::striped<Threads>);
    }
    void BlockedToStriped(T (&items)[Items]) { BlockedToStriped(items, items); }
    template <class Out>
    void WarpStripedToBlocked(const T (&input)[Items], Out (&output)[Items]) {
        gather(input, output, in_warp_striped, hearth_details::blocked<Items>);
    }
    void WarpStripedToBlocked(T (&items)[Items]) { WarpStripedToBlocked(items, items); }
    template <class Out>
    void BlockedToWarpStriped(const T (&input)[Items], Out (&output)[Items]) {
        gather(input, output, in_blocked, hearth_details::warp_striped<Items>);
    }
    void BlockedToWarpStriped(T (&items)[Items]) { BlockedToWarpStriped(items, items); }
    template <class Out, class Rank>
    void ScatterToBlocked(const T (&input)[Items], Out (&output)[Items], Rank (&ranks)[Items]) {
        scatter(input, output, ranks, in_blocked, [](int) { return true; });
    }
    template <class Rank>
    void ScatterToBlocked(T (&items)[Items], Rank (&ranks)[Items]) {
        ScatterToBlocked(items, items, ranks);
    }
    template <class Out, class Rank>
    void ScatterToStriped(const T (&input)[Items], Out (&output)[Items], Rank (&ranks)[Items]) {
        scatter(input, output, ranks, in_striped, [](int) { return true; });
    }
    template <class Rank>
    void ScatterToStriped(T (&items)[Items], Rank (&ranks)[Items]) {
        ScatterToStriped(items, items, ranks);
    }
    template <class Out, class Rank>
    void ScatterToStripedGuarded(const T (&input)[Items], Out (&output)[Items], Rank (&ranks)[Items]) {
        scatter(input, output, ranks, in_striped, [&](int i) { return ranks[i] >= 0; });
    }
    template <class Rank>
    void ScatterToStripedGuarded(T (&items)[Items], Rank (&ranks)[Items]) {
        ScatterToStripedGuarded(items, items, ranks);
    }
    template <class Out, class Rank, class Flag>
    void ScatterToStripedFlagged(const T (&input)[Items], Out (&output)[Items], Rank (&ranks)[Items], Flag (&is_valid)[Items]) {
        scatter(input, output, ranks, in_striped, [&](int i) { return is_valid[i]; });
    }
    template <class Rank, class Flag>
    void ScatterToStripedFlagged(T (&items)[Items], Rank (&ranks)[Items], Flag (&is_valid)[Items]) {
        ScatterToStripedFlagged(items, items, ranks, is_valid);
    }
};

}  // namespace cub
#include "../../hearth/macros_end.h"
