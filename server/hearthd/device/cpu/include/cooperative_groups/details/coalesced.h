// Groups of any lanes of a warp: the lanes that are converged at a place, and partitions by predicate, label or size.
// A member's rank is the index of its bit among the set bits of the mask.
#pragma once

namespace cooperative_groups {

class coalesced_group : public thread_group {
public:
    coalesced_group(details::made, unsigned mask, unsigned meta_rank = 0, unsigned meta_size = 1)
        : thread_group(details::made{}, details::coalesced_group_id, mask, meta_rank, meta_size) {}

    unsigned num_threads() const { return static_cast<unsigned>(__builtin_popcount(mask_)); }
    unsigned size() const { return num_threads(); }
    unsigned thread_rank() const {
        return static_cast<unsigned>(__builtin_popcount(mask_ & details::bits_below(hearth::lane_id())));
    }
    unsigned meta_group_rank() const { return meta_rank_; }
    unsigned meta_group_size() const { return meta_size_; }
    void sync() const { __syncwarp(mask_); }

    // A rank without a member reads the warp's last lane if that is a member, like the hardware's shuffle.
    template <class T>
    details::plain<T> shfl(T &&element, int rank) const {
        if (is_warp()) return move(element, static_cast<unsigned>(rank) % 32);
        const unsigned lane = details::lane_of(mask_, static_cast<unsigned>(rank));
        return move(element, lane < 32 ? lane : 31);
    }
    template <class T>
    details::plain<T> shfl_down(T &&element, unsigned delta) const {
        if (is_warp()) delta %= 32;
        return move(element, from_own(thread_rank() + static_cast<unsigned long long>(delta)));
    }
    template <class T>
    details::plain<T> shfl_up(T &&element, int delta) const {
        const unsigned back = is_warp() ? static_cast<unsigned>(delta) % 32 : static_cast<unsigned>(delta);
        const unsigned rank = thread_rank();
        return move(element, from_own(back <= rank ? rank - back : 32u));
    }

    int any(int predicate) const { return __ballot_sync(mask_, predicate) != 0; }
    int all(int predicate) const { return __ballot_sync(mask_, predicate) == mask_; }
    unsigned ballot(int predicate) const { return details::ranks_of(mask_, __ballot_sync(mask_, predicate)); }
    template <class T>
    unsigned match_any(T value) const {
        details::check_comparable<T>();
        return details::ranks_of(mask_, __match_any_sync(mask_, value));
    }
    template <class T>
    unsigned match_all(T value, int &predicate) const {
        details::check_comparable<T>();
        return details::ranks_of(mask_, __match_all_sync(mask_, value, &predicate));
    }

private:
    bool is_warp() const { return mask_ == 0xffffffffu; }
    unsigned from_own(unsigned long long rank) const {
        return rank < size() ? details::lane_of(mask_, static_cast<unsigned>(rank)) : hearth::lane_id();
    }
    template <class T>
    details::plain<T> move(T &&element, unsigned lane) const {
        return details::move<details::plain<T>>(mask_, element, lane);
    }
};

namespace details {
}  // namespace details

__attribute__((always_inline)) inline coalesced_group coalesced_threads(unsigned hearth_line = __builtin_LINE()) {
    return coalesced_group(details::made{}, hearth::active_here(hearth_line));
}

}  // namespace cooperative_groups
