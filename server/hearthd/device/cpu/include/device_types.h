// Types of CUDA's device functions that are not vectors.
#pragma once
#include "hearth/macros_begin.h"

enum cudaRoundMode { cudaRoundNearest, cudaRoundZero, cudaRoundPosInf, cudaRoundMinInf };
#include "hearth/macros_end.h"
