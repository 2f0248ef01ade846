// cub::BlockScan. Aggregates leave the initial value out; without one, the first exclusive output is undefined.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/thread/thread_scan.cuh>

namespace cub {

enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };

template <class T, int BLOCK_DIM_X, BlockScanAlgorithm ALGORITHM = BLOCK_SCAN_RAKING, int BLOCK_DIM_Y = 1,
          int BLOCK_DIM_Z = 1>
class BlockScan {
    static constexpr int Threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z;
    using Plus = hearth_details::Plus;
    struct Record {
        const T *input;
        T *output;
        int items;
        const T *initial;
        T aggregate;
    };
    using Meeting = hearth::BlockMeeting<Threads, Record>;

    // Returns the aggregate of all inputs. Without `Output`, no other result is written.
    template <bool Inclusive, bool Output, class Op>
    static T scan(const T *input, T *output, int items, const T *initial, Op &op) {
        Record own{input, output, items, initial, *input};
        {
            const Meeting meeting(own);
            if (meeting.leads()) all<Inclusive, Output>(op);
        }
        return own.aggregate;
    }
    template <bool Inclusive, bool Output, class Op>
    static void all(Op &op) {
        const Record &first = Meeting::of(0);
        bool begun = first.initial != nullptr, any = false;
        T running = begun ? *first.initial : *first.input, aggregate = *first.input;
        for (unsigned thread = 0; thread < Threads; ++thread) {
            const Record &record = Meeting::of(thread);
            for (int i = 0; i < record.items; ++i) {
                const T value = record.input[i];
                if (any) aggregate = op(aggregate, value);
                any = true;
                if (!Output) continue;
                if (!Inclusive && begun) record.output[i] = running;
                running = begun ? static_cast<T>(op(running, value)) : value;
                begun = true;
                if (Inclusive) record.output[i] = running;
            }
        }
        for (unsigned thread = 0; thread < Threads; ++thread) Meeting::of(thread).aggregate = aggregate;
    }
    // The first warp calls its own callbacks; that of lane 0 gives the prefix.
    template <bool Inclusive, class Op, class Callback>
    static void with_callback(const T *input, T *output, int items, Op &op, Callback &callback) {
        const T aggregate = scan<Inclusive, false>(input, output, items, nullptr, op);
        T prefix = aggregate;
        if (hearth::thread_rank() < 32) prefix = callback(aggregate);
        scan<Inclusive, true>(input, output, items, &prefix, op);
    }

public:
    using TempStorage = hearth_details::Room;

    BlockScan() {}
    BlockScan(TempStorage &) {}

    void ExclusiveSum(T input, T &output) {
        Plus op;
        const T zero{};
        scan<false, true>(&input, &output, 1, &zero, op);
    }
    void ExclusiveSum(T input, T &output, T &aggregate) {
        Plus op;
        const T zero{};
        aggregate = scan<false, true>(&input, &output, 1, &zero, op);
    }
    template <class Callback>
    void ExclusiveSum(T input, T &output, Callback &callback) {
        Plus op;
        with_callback<false>(&input, &output, 1, op, callback);
    }
    template <class Op>
    void ExclusiveScan(T input, T &output, Op op) {
        scan<false, true>(&input, &output, 1, nullptr, op);
    }
    template <class Op>
    void ExclusiveScan(T input, T &output, Op op, T &aggregate) {
        aggregate = scan<false, true>(&input, &output, 1, nullptr, op);
    }
    template <class Op>
    void ExclusiveScan(T input, T &output, T initial, Op op) {
        scan<false, true>(&input, &output, 1, &initial, op);
    }
    template <class Op>
    void ExclusiveScan(T input, T &output, T initial, Op op, T &aggregate) {
        aggregate = scan<false, true>(&input, &output, 1, &initial, op);
    }
    template <class Op, class Callback>
    void ExclusiveScan(T input, T &output, Op op, Callback &callback) {
        with_callback<false>(&input, &output, 1, op, callback);
    }
    template <int ITEMS>
    void ExclusiveSum(T (&input)[ITEMS], T (&output)[ITEMS]) {
        Plus op;
        const T zero{};
        scan<false, true>(input, output, ITEMS, &zero, op);
    }
    template <int ITEMS>
    void ExclusiveSum(T (&input)[ITEMS], T (&output)[ITEMS], T &aggregate) {
        Plus op;
        const T zero{};
        aggregate = scan<false, true>(input, output, ITEMS, &zero, op);
    }
    template <int ITEMS, class Callback>
    void ExclusiveSum(T (&input)[ITEMS], T (&output)[ITEMS], Callback &callback) {
        Plus op;
        with_callback<false>(input, output, ITEMS, op, callback);
    }
    template <int ITEMS, class Op>
    void ExclusiveScan(T (&input)[ITEMS], T (&output)[ITEMS], Op op) {
        scan<false, true>(input, output, ITEMS, nullptr, op);
    }
    template <int ITEMS, class Op>
    void ExclusiveScan(T (&input)[ITEMS], T (&output)[ITEMS], Op op, T &aggregate) {
        aggregate = scan<false, true>(input, output, ITEMS, nullptr, op);
    }
    template <int ITEMS, class Op>
    void ExclusiveScan(T (&input)[ITEMS], T (&output)[ITEMS], T initial, Op op) {
        scan<false, true>(input, output, ITEMS, &initial, op);
    }
    template <int ITEMS, class Op>
    void ExclusiveScan(T (&input)[ITEMS], T (&output)[ITEMS], T initial, Op op, T &aggregate) {
        aggregate = scan<false, true>(input, output, ITEMS, &initial, op);
    }
    template <int ITEMS, class Op, class Callback>
    void ExclusiveScan(T (&input)[ITEMS], T (&output)[ITEMS], Op op, Callback &callback) {
        with_callback<false>(input, output, ITEMS, op, callback);
    }
    void InclusiveSum(T input, T &output) {
        Plus op;
        scan<true, true>(&input, &output, 1, nullptr, op);
    }
    void InclusiveSum(T input, T &output, T &aggregate) {
        Plus op;
        aggregate = scan<true, true>(&input, &output, 1, nullptr, op);
    }
    template <class Callback>
    void InclusiveSum(T input, T &output, Callback &callback) {
        Plus op;
        with_callback<true>(&input, &output, 1, op, callback);
    }
    template <class Op>
    void InclusiveScan(T input, T &output, Op op) {
        scan<true, true>(&input, &output, 1, nullptr, op);
    }
    template <class Op>
    void InclusiveScan(T input, T &output, Op op, T &aggregate) {
        aggregate = scan<true, true>(&input, &output, 1, nullptr, op);
    }
    template <class Op>
    void InclusiveScan(T input, T &output, T initial, Op op) {
        scan<true, true>(&input, &output, 1, &initial, op);
    }
    template <class Op>
    void InclusiveScan(T input, T &output, T initial, Op op, T &aggregate) {
        aggregate = scan<true, true>(&input, &output, 1, &initial, op);
    }
    template <class Op, class Callback>
    void InclusiveScan(T input, T &output, Op op, Callback &callback) {
        with_callback<true>(&input, &output, 1, op, callback);
    }
    template <int ITEMS>
    void InclusiveSum(T (&input)[ITEMS], T (&output)[ITEMS]) {
        Plus op;
        scan<true, true>(input, output, ITEMS, nullptr, op);
    }
    template <int ITEMS>
    void InclusiveSum(T (&input)[ITEMS], T (&output)[ITEMS], T &aggregate) {
        Plus op;
        aggregate = scan<true, true>(input, output, ITEMS, nullptr, op);
    }
    template <int ITEMS, class Callback>
    void InclusiveSum(T (&input)[ITEMS], T (&output)[ITEMS], Callback &callback) {
        Plus op;
        with_callback<true>(input, output, ITEMS, op, callback);
    }
    template <int ITEMS, class Op>
    void InclusiveScan(T (&input)[ITEMS], T (&output)[ITEMS], Op op) {
        scan<true, true>(input, output, ITEMS, nullptr, op);
    }
    template <int ITEMS, class Op>
    void InclusiveScan(T (&input)[ITEMS], T (&output)[ITEMS], Op op, T &aggregate) {
        aggregate = scan<true, true>(input, output, ITEMS, nullptr, op);
    }
    template <int ITEMS, class Op>
    void InclusiveScan(T (&input)[ITEMS], T (&output)[ITEMS], T initial, Op op) {
        scan<true, true>(input, output, ITEMS, &initial, op);
    }
    template <int ITEMS, class Op>
    void InclusiveScan(T (&input)[ITEMS], T (&output)[ITEMS], T initial, Op op, T &aggregate) {
        aggregate = scan<true, true>(input, output, ITEMS, &initial, op);
    }
    template <int ITEMS, class Op, class Callback>
    void InclusiveScan(T (&input)[ITEMS], T (&output)[ITEMS], Op op, Callback &callback) {
        with_callback<true>(input, output, ITEMS, op, callback);
    }
};

}  // namespace cub
#include "../../hearth/macros_end.h"
