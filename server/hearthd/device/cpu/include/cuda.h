// Defines CUDA_VERSION only. Its other names are for the host, or defined for every kernel (hearth/shim.h).
#pragma once
#define CUDA_VERSION 12060
