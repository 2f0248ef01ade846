// Hides a program's macros whose names the backend's headers use, and CUDA's headers hide or do not use.
// Every header that a program can include, and that contains code, begins with this file and ends with macros_end.h.
#pragma push_macro("min")
#pragma push_macro("max")
#pragma push_macro("lane")
#pragma push_macro("bits")
#undef min
#undef max
#undef lane
#undef bits
