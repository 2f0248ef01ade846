"""A new client: import, connect, upload, a kernel that the node has compiled before, read. First argument: the
target."""

import sys

import numpy as np

import hearth

SOURCE = """
extern "C" __global__ void twice(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
"""

with hearth.connect(sys.argv[1]) as node:
    gpu = node.device(0)
    host = np.arange(1 << 16, dtype=np.float32)
    x, y = gpu.asarray(host), gpu.empty(1 << 16, np.float32)
    gpu.RawKernel(SOURCE, "twice")((256,), (256,), (x, y, np.int32(1 << 16)))
    print("first", y.get()[-1], flush=True)
