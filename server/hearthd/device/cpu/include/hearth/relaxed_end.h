// The end of relaxed_begin.h's range.
#ifdef HEARTH_RACECHECK
#pragma pop_macro("__ATOMIC_SEQ_CST")
#endif
