"""A module with template kernels, which are named by C++ expressions.

Prints:

    float32 [ 0.  3.  6.  9. 12.]
    int32 [ 0  3  6  9 12]
"""

# For CuPy:
#     import cupy as cp
#     import numpy as np
# For Hearth:
import numpy as np

import hearth

cp = hearth.device()
# The rest is the same for both.

source = r"""
template<typename T, int by>
__global__ void scale(T* x, int n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * by;
}
"""
names = {np.float32: "scale<float, 3>", np.int32: "scale<int, 3>"}
module = cp.RawModule(code=source, options=("-std=c++17",), name_expressions=list(names.values()))
for dtype, name in names.items():
    kernel = module.get_function(name)
    x = cp.arange(5, dtype=dtype)
    kernel((1,), (32,), (x, 5))
    print(x.dtype, x.get())
