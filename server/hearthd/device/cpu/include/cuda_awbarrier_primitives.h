// The C form of a barrier in shared memory:
// https://docs.nvidia.com/cuda/cuda-c-programming-guide/ (Asynchronous Barrier, Memory Barrier Primitives Interface).
#pragma once
#include "hearth/macros_begin.h"
#include <hearth/arrivals.h>

typedef uint64_t __mbarrier_t;
typedef uint64_t __mbarrier_token_t;

inline uint32_t __mbarrier_maximum_count() { return (1u << 20) - 1; }
inline void __mbarrier_init(__mbarrier_t *barrier, uint32_t expected) { hearth::Arrivals::start(barrier, expected); }
inline void __mbarrier_inval(__mbarrier_t *) {}
inline __mbarrier_token_t __mbarrier_arrive(__mbarrier_t *barrier) { return hearth::Arrivals::arrive(barrier); }
inline __mbarrier_token_t __mbarrier_arrive_and_drop(__mbarrier_t *barrier) {
    return hearth::Arrivals::arrive(barrier, 1, 1);
}
inline uint32_t __mbarrier_token_pending_count(__mbarrier_token_t token) {
    return static_cast<uint32_t>(hearth::Arrivals::pending(token));
}
inline bool __mbarrier_test_wait(__mbarrier_t *barrier, __mbarrier_token_t token) {
    return hearth::poll([=] { return hearth::Arrivals::passed(barrier, token); });
}
inline bool __mbarrier_test_wait_parity(__mbarrier_t *barrier, bool parity) {
    return hearth::poll([=] { return hearth::Arrivals::passed_parity(barrier, parity); });
}
inline bool __mbarrier_try_wait(__mbarrier_t *barrier, __mbarrier_token_t token, uint32_t max_sleep_ns) {
    return hearth::wait_for_ns([=] { return hearth::Arrivals::passed(barrier, token); }, max_sleep_ns);
}
inline bool __mbarrier_try_wait_parity(__mbarrier_t *barrier, bool parity, uint32_t max_sleep_ns) {
    return hearth::wait_for_ns([=] { return hearth::Arrivals::passed_parity(barrier, parity); }, max_sleep_ns);
}
#include "hearth/macros_end.h"
