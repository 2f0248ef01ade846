// Tiles of more than a warp. In an operation of the tile, the lanes of each warp meet. Then one lane of each warp, the
// leader, meets the other leaders and passes the result to the other lanes of its warp.
#pragma once

namespace cooperative_groups {
namespace details {

inline constexpr unsigned whole_warp = 0xffffffffu;

// The record of a leader in a meeting: its element, and room for the elements of all leaders in the order of their
// warps.
struct Leader {
    const void *own;
    void *all;
};

// One for each running block, because a block stays on its thread. All counts are 0 again when a block ends.
struct LeadersMeetings {
    struct Place {
        uint8_t arrived, phase;
    };
    Leader leaders[32];
    Place places[5][16];  // for tiles of 64 to 1024 threads, by the index of the tile in the block
};
inline __thread LeadersMeetings leaders_meetings;

// The leaders of `count` warps from `first` on wait for each other. The last to arrive distributes the elements, which
// have `size` bytes.
HEARTH_UNCHECKED inline void meet_leaders(unsigned first, unsigned count, const Leader &own, size_t size) {
    LeadersMeetings &meetings = leaders_meetings;
    LeadersMeetings::Place &place = meetings.places[__builtin_ctz(count) - 1][first / count];
    meetings.leaders[hearth::thread_rank() / 32] = own;
    if (++place.arrived == count) {
        for (unsigned to = first; size != 0 && to < first + count; ++to) {
            char *at = static_cast<char *>(meetings.leaders[to].all);
            for (unsigned from = first; from < first + count; ++from, at += size) {
                __builtin_memcpy(at, meetings.leaders[from].own, size);
            }
        }
        place.arrived = 0;
        ++place.phase;
        return;
    }
    for (const uint8_t phase = place.phase; place.phase == phase;) hearth::yield();
}

// Room for elements that need not have a default constructor.
template <class T, unsigned Count>
struct Elements {
    alignas(T) unsigned char bytes[Count * sizeof(T)];
    T *data() { return reinterpret_cast<T *>(bytes); }
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
        const void *const meeting = &leaders_meetings.leaders[first_warp()];
        hearth::race_arrive(meeting);
        if (hearth::lane_id() == leader()) meet_leaders(first_warp(), hearth_warps, {}, 0);
        __syncwarp(whole_warp);
        hearth::race_depart(meeting);
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
            meet_leaders(first_warp(), hearth_warps, {&of_warp, of_warps.bytes}, sizeof(T));
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
