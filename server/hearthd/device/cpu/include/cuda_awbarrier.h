// nvcuda::experimental::awbarrier, the predecessor of cuda::barrier.
#pragma once
#include "hearth/macros_begin.h"
#include <cuda_awbarrier_primitives.h>

namespace nvcuda {
namespace experimental {

class awbarrier {
public:
    class arrival_token {
    public:
        arrival_token() = default;

    private:
        explicit arrival_token(__mbarrier_token_t token) : token_(token) {}
        __mbarrier_token_t token_;
        friend class awbarrier;
    };
    awbarrier() = default;
    awbarrier(const awbarrier &) = delete;
    awbarrier &operator=(const awbarrier &) = delete;

    arrival_token arrive() { return arrival_token(__mbarrier_arrive(&word_)); }
    arrival_token arrive_and_drop() { return arrival_token(__mbarrier_arrive_and_drop(&word_)); }
    void wait(arrival_token token) {
        hearth::wait_until([&] { return hearth::Arrivals::passed(&word_, token.token_); });
    }
    void arrive_and_wait() { wait(arrive()); }
    bool try_wait(arrival_token token, uint32_t max_sleep_ns) {
        return __mbarrier_try_wait(&word_, token.token_, max_sleep_ns);
    }
    bool try_wait_parity(bool parity, uint32_t max_sleep_ns) {
        return __mbarrier_try_wait_parity(&word_, parity, max_sleep_ns);
    }
    bool timed_wait(arrival_token token, uint32_t hint_cycles) { return try_wait(token, hint_cycles); }
    bool timed_wait_parity(bool parity, uint32_t hint_cycles) { return try_wait_parity(parity, hint_cycles); }
    static constexpr uint32_t max() { return (1u << 14) - 1; }

private:
    __mbarrier_t word_;
    friend inline void init(awbarrier *barrier, uint32_t expected) { __mbarrier_init(&barrier->word_, expected); }
    friend inline void inval(awbarrier *) {}
};

}  // namespace experimental
}  // namespace nvcuda
#include "hearth/macros_end.h"
