"""Example of a client in a container that has only the daemon's socket: the service `client` of compose.yml."""

import numpy as np

import hearth

SOURCE = r"""
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""

with hearth.connect() as node:  # /run/hearth/hearth.sock, in the mounted volume; HEARTH_TARGET overrides it
    gpu = node.device(0)
    saxpy = gpu.RawModule(code=SOURCE).get_function("saxpy")
    n = 1 << 20
    x, y = gpu.asarray(np.arange(n, dtype=np.float32)), gpu.zeros(n, np.float32)
    saxpy((n // 256,), (256,), (np.float32(2), x, y, np.int32(n)))
    print(gpu.properties.name, y.get()[:4])
