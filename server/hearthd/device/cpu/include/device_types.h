// Types of CUDA's device functions that are not vectors.
#pragma once

enum cudaRoundMode { cudaRoundNearest, cudaRoundZero, cudaRoundPosInf, cudaRoundMinInf };
