"""A graph that is captured from a stream, and launched several times.

Prints:

    [6. 6. 6. 6.]
"""

# For CuPy:
#     import cupy as cp
#     import numpy as np
#     from cupy.cuda import Stream
# For Hearth:
import numpy as np

import hearth

cp = hearth.device()
Stream = cp.stream
# The rest is the same for both.

add = cp.RawKernel('extern "C" __global__ void add(float* x, float by) { x[threadIdx.x] += by; }', "add")
x = cp.zeros(4, dtype=np.float32)
stream = Stream(non_blocking=True)
with stream:
    stream.begin_capture()
    add((1,), (4,), (x, np.float32(1)))
    add((1,), (4,), (x, np.float32(2)))
    graph = stream.end_capture()
graph.launch(stream=stream)
graph.launch(stream=stream)
stream.synchronize()
print(x.get())
