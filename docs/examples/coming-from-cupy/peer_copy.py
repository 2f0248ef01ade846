"""An array that is copied from one device to another, where a kernel works on the copy.

Prints:

    [0. 1. 2. 3.] [0. 2. 4. 6.]
"""

# For CuPy:
#     import cupy as cp
#     import numpy as np
#     def on(device):
#         cp.cuda.Device(device).use()
#         return cp
# For Hearth:
import numpy as np

import hearth

on = hearth.connect().device
# The rest is the same for both.

x = on(0).arange(4, dtype=np.float32)
y = on(1).asarray(x)
double = on(1).RawKernel('extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }', "twice")
double((1,), (4,), (y,))
print(x.get(), y.get())
