// Tiles of more than a warp. In an operation of the tile the lanes of each warp meet, then one of each, its
// leader, meets the other leaders and hands the outcome to the other lanes of its warp.
#pragma once

namespace cooperative_groups {
namespace details {

inline constexpr unsigned whole_warp = 0xffffffffu;

// Run once, by the last leader to arrive: the parts of the leaders in the order of their warps.
using LeadersFinish = void (*)(hearth::WarpOp *const *ops, unsigned count);

// One per block that runs, as a block stays on its thread. All counts are back at zero when a block ends.
struct LeadersMeetings {
    struct Place {
        uint8_t arrived, phase;
    };
    hearth::WarpOp *ops[32];
    Place places[5][16];  // for tiles of 64 to 1024 threads, by the tile's place in the block
};
inline __thread LeadersMeetings leaders_meetings;

// The leaders of `count` warps from `first` on wait for each other.
inline void meet_leaders(unsigned first, unsigned count, hearth::WarpOp *op, LeadersFinish finish) {
    LeadersMeetings &meetings = leaders_meetings;
    LeadersMeetings::Place &place = meetings.places[__builtin_ctz(count) - 1][first / count];
    meetings.ops[hearth::thread_rank() / 32] = op;
    if (++place.arrived == count) {
        if (finish != nullptr) finish(meetings.ops + first, count);
        place.arrived = 0;
        ++place.phase;
        return;
    }
    for (const uint8_t phase = place.phase; place.phase == phase;) hearth::yield();
}

// Each leader hands over a T (`value`) and gets those of all (`result`).
template <class T>
inline void finish_gather(hearth::WarpOp *const *ops, unsigned count) {
    for (unsigned to = 0; to < count; ++to) {
        char *const results = reinterpret_cast<char *>(ops[to]->result);
        for (unsigned from = 0; from < count; ++from) {
            __builtin_memcpy(results + from * sizeof(T), reinterpret_cast<const void *>(ops[from]->value), sizeof(T));
        }
    }
}

// Room for elements that need not have a default constructor.
template <class T, unsigned Count>
struct Elements {
    alignas(T) unsigned char bytes[Count * sizeof(T)];
    T *data() { return reinterpret_cast<T *>(bytes); }
    T &operator[](unsigned i) { return data()[i]; }
};

template <unsigned Size>
class tile_ranks {
public:
    static unsigned thread_rank() { return hearth::thread_rank() & (Size - 1); }
    static constexpr unsigned num_threads() { return Size; }
    static constexpr unsigned size() { return Size; }
};

template <unsigned Size>
class wide_tile : public tile_ranks<Size> {
    static_assert(Size >= 64 && Size <= 1024, "a tile has at most 1024 threads");

public:
    static constexpr unsigned hearth_warps = Size / 32;

    static void sync() {
        if (hearth::lane_id() == leader()) meet_leaders(first_warp(), hearth_warps, nullptr, nullptr);
        __syncwarp(whole_warp);
    }
    static int any(int predicate) {
        return combined(__any_sync(whole_warp, predicate), [](int *votes) {
            int any = 0;
            for (unsigned i = 0; i < hearth_warps; ++i) any |= votes[i];
            return any;
        });
    }
    static int all(int predicate) {
        return combined(__all_sync(whole_warp, predicate), [](int *votes) {
            int all = 1;
            for (unsigned i = 0; i < hearth_warps; ++i) all &= votes[i];
            return all;
        });
    }
    template <class T>
    static T shfl(T element, unsigned rank) {
        const unsigned warp = rank / 32 % hearth_warps;
        return combined(details::move(whole_warp, element, rank % 32), [warp](T *of_warps) { return of_warps[warp]; });
    }

    // combine(the values of the tile's warps), computed by each warp's leader. `of_warp` is the same in all lanes.
    template <class T, class Combine>
    static T combined(const T &of_warp, Combine combine) {
        static_assert(std::is_trivially_copyable_v<T>, "a tile exchanges trivially copyable types only");
        T result = of_warp;
        const unsigned leading = leader();
        if (hearth::lane_id() == leading) {
            Elements<T, hearth_warps> of_warps;
            hearth::WarpOp op{reinterpret_cast<uint64_t>(&of_warp), 0, reinterpret_cast<uint64_t>(of_warps.bytes)};
            meet_leaders(first_warp(), hearth_warps, &op, finish_gather<T>);
            result = combine(of_warps.data());
        }
        return details::move(whole_warp, result, leading);
    }
    static unsigned hearth_warp() { return tile_ranks<Size>::thread_rank() / 32; }

private:
    // The lanes of the warp meet here; those that have returned from the kernel take no part.
    static unsigned leader() { return static_cast<unsigned>(__builtin_ctz(__ballot_sync(whole_warp, 1))); }
    static unsigned first_warp() { return (hearth::thread_rank() & ~(Size - 1)) / 32; }
};

}  // namespace details
}  // namespace cooperative_groups
