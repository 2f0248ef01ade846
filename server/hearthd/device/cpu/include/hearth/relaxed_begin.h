// CUDA's atomic functions order no other memory (CUDA C++ Programming Guide, "Atomic Functions"). Here they are
// sequentially consistent, which costs nothing; the race check uses the order that CUDA promises.
#ifdef HEARTH_RACECHECK
#pragma push_macro("__ATOMIC_SEQ_CST")
#undef __ATOMIC_SEQ_CST
#define __ATOMIC_SEQ_CST __ATOMIC_RELAXED
#endif
