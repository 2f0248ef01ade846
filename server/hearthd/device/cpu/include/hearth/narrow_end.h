// Removes the macros that narrow_float.h and narrow_functions.h are given, so that the next type can define its own.
#undef HEARTH_N
#undef HEARTH_N2
#undef HEARTH_N_RAW
#undef HEARTH_N_BITS
#undef HEARTH_N_OF
#undef HEARTH_N_ENCODED
#undef HEARTH_N_TO
#undef HEARTH_N_FROM
#undef HEARTH_N_EXPONENT
#undef HEARTH_N_MANTISSA
#undef HEARTH_N_OPERATORS
#undef HEARTH_N2_OPERATORS
