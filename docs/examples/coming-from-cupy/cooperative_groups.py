"""A kernel whose blocks wait for each other: the whole grid synchronizes, and then every block reads the total.

Prints:

    [120 120 120 120]
"""

# For CuPy:
#     import cupy as cp
#     import numpy as np
# For Hearth:
import numpy as np

import hearth

cp = hearth.device()
# The rest is the same for both.

total = cp.RawKernel(
    r"""
    #include <cooperative_groups.h>
    extern "C" __global__
    void total(const int* x, int* sum, int* y) {
        atomicAdd(sum, x[blockIdx.x * blockDim.x + threadIdx.x]);
        cooperative_groups::this_grid().sync();
        if (threadIdx.x == 0) y[blockIdx.x] = *sum;
    }
    """,
    "total",
    enable_cooperative_groups=True,
)
x = cp.arange(16, dtype=np.int32)
sum_of_all = cp.zeros(1, dtype=np.int32)
y = cp.zeros(4, dtype=np.int32)
total((4,), (4,), (x, sum_of_all, y))
print(y.get())
