// Its types and functions are the host's; what kernels use is known to them already (hearth/shim.h).
#pragma once
#define CUDA_VERSION 12060
