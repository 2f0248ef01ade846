"""A raw kernel on complex numbers, written with the functions of cuComplex.h.

Prints:

    [0.+0.j 1.+2.j 2.+4.j 3.+6.j]
"""

# For CuPy:
#     import cupy as cp
#     import numpy as np
# For Hearth:
import numpy as np

import hearth

cp = hearth.device()
# The rest is the same for both.

rotate = cp.RawKernel(
    r"""
    #include <cuComplex.h>
    extern "C" __global__
    void rotate(const cuFloatComplex* x, cuFloatComplex* y, cuFloatComplex by) {
        int i = blockDim.x * blockIdx.x + threadIdx.x;
        y[i] = cuCaddf(x[i], cuCmulf(by, x[i]));
    }
    """,
    "rotate",
    translate_cucomplex=True,
)
x = cp.arange(25, dtype=np.complex64).reshape(5, 5)
y = cp.zeros((5, 5), dtype=np.complex64)
rotate((5,), (5,), (x, y, np.complex64(2j)))
print(y.get()[0, :4])
