"""A matrix that is passed by value: 100 bytes in the memory of the kernel's parameters.

Prints:

    [ 10.  35.  60.  85. 110.]
"""

# For CuPy:
#     import cupy as cp
#     import numpy as np
# For Hearth:
import numpy as np

import hearth

cp = hearth.device()
# The rest is the same for both.

float5x5 = np.dtype({"names": ["rows"], "formats": [(np.float32, (5, 5))]})
multiply = cp.RawKernel(
    r"""
    struct float5x5 { float rows[5][5]; };
    extern "C" __global__
    void multiply(float5x5 matrix, const float* x, float* y) {
        float sum = 0;
        for (int k = 0; k < 5; ++k) sum += matrix.rows[threadIdx.x][k] * x[k];
        y[threadIdx.x] = sum;
    }
    """,
    "multiply",
)
matrix = np.arange(25, dtype=np.float32).view(float5x5)
x = cp.ones(5, dtype=np.float32)
y = cp.zeros(5, dtype=np.float32)
multiply((1,), (5,), (matrix, x, y))
print(y.get())
