// cub::WarpReduce: lane 0 of the logical warp, or the head of a segment, gets the result; the others keep their input.
#pragma once
#include "../../hearth/macros_begin.h"
#include <cub/thread/thread_operators.cuh>
#include <cub/util_ptx.cuh>

namespace cub {

template <class T, int LOGICAL_WARP_THREADS = 32>
class WarpReduce {
    static constexpr unsigned Size = LOGICAL_WARP_THREADS;
    enum class Flag { none, head, tail };
    template <class Op>
    struct Record {
        T value;
        Op *op;
        int valid;
        Flag kind;
        bool flag;
        T result;

        static void finish(const hearth::LaneRecords<Record, Size> &lanes) {
            for (unsigned first = 0; first < Size;) {
                Record *const head = lanes.at(first);
                if (head == nullptr) {
                    ++first;
                    continue;
                }
                T total = head->value;
                bool ended = head->kind == Flag::tail && head->flag;
                unsigned lane = first + 1;
                for (; lane < Size && static_cast<int>(lane) < head->valid && !ended; ++lane) {
                    Record *const next = lanes.at(lane);
                    if (next == nullptr) continue;
                    if (next->kind == Flag::head && next->flag) break;
                    total = (*head->op)(total, next->value);
                    ended = next->kind == Flag::tail && next->flag;
                }
                head->result = total;
                if (head->kind == Flag::none) return;
                first = lane;
            }
        }
    };
    template <class Op>
    static T meet(const T &input, Op op, int valid, Flag kind = Flag::none, bool flag = false) {
        Record<Op> own{input, &op, valid, kind, flag, input};
        hearth::warp_meet<Size>(own);
        return own.result;
    }

public:
    using TempStorage = hearth_details::Room;
    WarpReduce(TempStorage &) {}

    T Sum(T input) { return meet(input, hearth_details::Plus(), LOGICAL_WARP_THREADS); }
    T Sum(T input, int valid_items) { return meet(input, hearth_details::Plus(), valid_items); }
    template <class Op>
    T Reduce(T input, Op op) {
        return meet(input, op, LOGICAL_WARP_THREADS);
    }
    template <class Op>
    T Reduce(T input, Op op, int valid_items) {
        return meet(input, op, valid_items);
    }
    template <class FlagT>
    T HeadSegmentedSum(T input, FlagT head_flag) {
        return HeadSegmentedReduce(input, head_flag, hearth_details::Plus());
    }
    template <class FlagT>
    T TailSegmentedSum(T input, FlagT tail_flag) {
        return TailSegmentedReduce(input, tail_flag, hearth_details::Plus());
    }
    template <class Op, class FlagT>
    T HeadSegmentedReduce(T input, FlagT head_flag, Op op) {
        return meet(input, op, LOGICAL_WARP_THREADS, Flag::head, static_cast<bool>(head_flag));
    }
    template <class Op, class FlagT>
    T TailSegmentedReduce(T input, FlagT tail_flag, Op op) {
        return meet(input, op, LOGICAL_WARP_THREADS, Flag::tail, static_cast<bool>(tail_flag));
    }
};

}  // namespace cub
#include "../../hearth/macros_end.h"
