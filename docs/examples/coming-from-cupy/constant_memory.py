"""Constant memory and a global variable of a module, written and read from Python.

Prints:

    [ 8. 13. 26. 47.] 4
"""

# For CuPy:
#     import cupy as cp
#     import numpy as np
#     def symbol(module, name, dtype, shape):
#         return cp.ndarray(shape, dtype, module.get_global(name))
# For Hearth:
import numpy as np

import hearth

cp = hearth.device()


def symbol(module, name, dtype, shape):
    return module.get_global(name, dtype, shape)


# The rest is the same for both.

module = cp.RawModule(
    code=r"""
    __constant__ float coefficients[3];
    __device__ int calls;
    extern "C" __global__
    void polynomial(const float* x, float* y) {
        int i = threadIdx.x;
        y[i] = coefficients[0] + x[i] * (coefficients[1] + x[i] * coefficients[2]);
        atomicAdd(&calls, 1);
    }
    """
)
coefficients = symbol(module, "coefficients", np.float32, (3,))
calls = symbol(module, "calls", np.int32, (1,))
coefficients.set(np.array([8, 1, 4], np.float32))
calls.set(np.zeros(1, np.int32))
x = cp.arange(4, dtype=np.float32)
y = cp.zeros(4, dtype=np.float32)
module.get_function("polynomial")((1,), (4,), (x, y))
print(y.get(), calls.get()[0])
