// The end of macros_begin.h's range.
#pragma pop_macro("min")
#pragma pop_macro("max")
#pragma pop_macro("lane")
#pragma pop_macro("bits")
