// cub::WarpScan. Aggregates leave the initial value out.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/thread/thread_operators.cuh>
#include <cub/util_ptx.cuh>

namespace cub {

template <class T, int LOGICAL_WARP_THREADS = 32>
class WarpScan {
    static constexpr unsigned Size = LOGICAL_WARP_THREADS;
    template <class Op>
    struct Record {
        T value;
        Op *op;
        const T *initial;
        T inclusive, exclusive, aggregate;

        static void finish(const hearth::LaneRecords<Record, Size> &lanes) {
            Record *before = nullptr;
            for (unsigned lane = 0; lane < Size; ++lane) {
                Record *const own = lanes.at(lane);
                if (own == nullptr) continue;
                own->aggregate = before == nullptr ? own->value : (*own->op)(before->aggregate, own->value);
                if (before != nullptr) own->exclusive = before->inclusive;
                else if (own->initial != nullptr) own->exclusive = *own->initial;
                own->inclusive = before == nullptr && own->initial == nullptr
                                     ? own->value
                                     : (*own->op)(own->exclusive, own->value);
                before = own;
            }
            if (before == nullptr) return;
            for (unsigned lane = 0; lane < Size; ++lane) {
                if (Record *const own = lanes.at(lane)) own->aggregate = before->aggregate;
            }
        }
    };
    template <class Op>
    static Record<Op> meet(const T &input, Op &op, const T *initial) {
        Record<Op> own{input, &op, initial, input, input, input};
        hearth::warp_meet<Size>(own);
        return own;
    }

public:
    using TempStorage = hearth_details::Room;
    WarpScan(TempStorage &) {}

    void InclusiveSum(T input, T &output) { InclusiveScan(input, output, hearth_details::Plus()); }
    void InclusiveSum(T input, T &output, T &aggregate) {
        InclusiveScan(input, output, hearth_details::Plus(), aggregate);
    }
    void ExclusiveSum(T input, T &output) { ExclusiveScan(input, output, T{}, hearth_details::Plus()); }
    void ExclusiveSum(T input, T &output, T &aggregate) {
        ExclusiveScan(input, output, T{}, hearth_details::Plus(), aggregate);
    }
    template <class Op>
    void InclusiveScan(T input, T &output, Op op) {
        output = meet(input, op, nullptr).inclusive;
    }
    template <class Op>
    void InclusiveScan(T input, T &output, T initial, Op op) {
        output = meet(input, op, &initial).inclusive;
    }
    template <class Op>
    void InclusiveScan(T input, T &output, Op op, T &aggregate) {
        const auto result = meet(input, op, nullptr);
        output = result.inclusive;
        aggregate = result.aggregate;
    }
    template <class Op>
    void InclusiveScan(T input, T &output, T initial, Op op, T &aggregate) {
        const auto result = meet(input, op, &initial);
        output = result.inclusive;
        aggregate = result.aggregate;
    }
    template <class Op>
    void ExclusiveScan(T input, T &output, Op op) {
        output = meet(input, op, nullptr).exclusive;
    }
    template <class Op>
    void ExclusiveScan(T input, T &output, T initial, Op op) {
        output = meet(input, op, &initial).exclusive;
    }
    template <class Op>
    void ExclusiveScan(T input, T &output, Op op, T &aggregate) {
        const auto result = meet(input, op, nullptr);
        output = result.exclusive;
        aggregate = result.aggregate;
    }
    template <class Op>
    void ExclusiveScan(T input, T &output, T initial, Op op, T &aggregate) {
        const auto result = meet(input, op, &initial);
        output = result.exclusive;
        aggregate = result.aggregate;
    }
    template <class Op>
    void Scan(T input, T &inclusive, T &exclusive, Op op) {
        const auto result = meet(input, op, nullptr);
        inclusive = result.inclusive;
        exclusive = result.exclusive;
    }
    template <class Op>
    void Scan(T input, T &inclusive, T &exclusive, T initial, Op op) {
        const auto result = meet(input, op, &initial);
        inclusive = result.inclusive;
        exclusive = result.exclusive;
    }
    T Broadcast(T input, unsigned source) {
        return ShuffleIndex<LOGICAL_WARP_THREADS>(
            input, static_cast<int>(source), hearth::LogicalWarp<Size>::mask());
    }
};

}  // namespace cub
#include "../../hearth/macros_end.h"
