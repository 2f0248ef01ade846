"""A raw kernel on matrices, with a grid, blocks and scalars.

Prints:

    [ 0.  3.  6.  9. 12.]
"""

# For CuPy:
#     import cupy as cp
#     import numpy as np
# For Hearth:
import numpy as np

import hearth

cp = hearth.device()
# The rest is the same for both.

axpy = cp.RawKernel(
    r"""
    extern "C" __global__
    void axpy(float a, const float* x, float* y, int n) {
        int i = blockDim.x * blockIdx.x + threadIdx.x;
        if (i < n) y[i] += a * x[i];
    }
    """,
    "axpy",
)
x = cp.arange(25, dtype=np.float32).reshape(5, 5)
y = cp.arange(25, dtype=np.float32).reshape(5, 5)
axpy((4,), (8,), (np.float32(2), x, y, 25))
print(y.get()[0])
