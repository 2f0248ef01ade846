// cub::WarpExchange.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/util_type.cuh>

namespace cub {

enum WarpExchangeAlgorithm { WARP_EXCHANGE_SMEM, WARP_EXCHANGE_SHUFFLE };

template <class T, int ITEMS_PER_THREAD, int LOGICAL_WARP_THREADS = 32,
          WarpExchangeAlgorithm ALGORITHM = WARP_EXCHANGE_SMEM>
class WarpExchange {
    static constexpr unsigned Size = LOGICAL_WARP_THREADS;
    static constexpr int Items = ITEMS_PER_THREAD, Count = Items * LOGICAL_WARP_THREADS;
    template <class Out>
    struct Record {
        T items[Items];
        int to[Items];  // the place of each item in the striped or blocked output
        bool striped;
        Out *output;

        static void finish(const hearth::LaneRecords<Record, Size> &lanes) {
            for (unsigned lane = 0; lane < Size; ++lane) {
                const Record *const own = lanes.at(lane);
                for (int i = 0; own != nullptr && i < Items; ++i) {
                    const int at = own->to[i];
                    if (at < 0 || at >= Count) continue;
                    const Record *const taker =
                        lanes.at(static_cast<unsigned>(own->striped ? at % LOGICAL_WARP_THREADS : at / Items));
                    if (taker != nullptr) taker->output[own->striped ? at / LOGICAL_WARP_THREADS : at % Items] = own->items[i];
                }
            }
        }
    };
    template <class Out, class To>
    static void exchange(const T (&input)[Items], Out (&output)[Items], bool striped, To to) {
        Record<Out> own;
        own.striped = striped;
        own.output = output;
        for (int i = 0; i < Items; ++i) {
            own.items[i] = input[i];
            own.to[i] = to(i);
        }
        hearth::warp_meet<Size>(own);
    }
    static int lane() { return static_cast<int>(hearth::LogicalWarp<Size>::rank()); }

public:
    using TempStorage = hearth_details::Room;

    WarpExchange() {}
    WarpExchange(TempStorage &) {}

    template <class Out>
    void BlockedToStriped(const T (&input)[Items], Out (&output)[Items]) {
        exchange(input, output, true, [](int i) { return lane() * Items + i; });
    }
    template <class Out>
    void StripedToBlocked(const T (&input)[Items], Out (&output)[Items]) {
        exchange(input, output, false, [](int i) { return i * LOGICAL_WARP_THREADS + lane(); });
    }
    template <class Rank>
    void ScatterToStriped(T (&items)[Items], Rank (&ranks)[Items]) {
        ScatterToStriped(items, items, ranks);
    }
    template <class Out, class Rank>
    void ScatterToStriped(const T (&input)[Items], Out (&output)[Items], Rank (&ranks)[Items]) {
        exchange(input, output, true, [&](int i) { return static_cast<int>(ranks[i]); });
    }
};

}  // namespace cub
#include "../../hearth/macros_end.h"
