"""Two streams, the second of which waits for an event of the first, and the time between two events.

Prints:

    True [4. 4. 4. 4.]
"""

# For CuPy:
#     import cupy as cp
#     import numpy as np
#     from cupy.cuda import Event, Stream, get_elapsed_time
# For Hearth:
import numpy as np

import hearth

cp = hearth.device()
Event, Stream, get_elapsed_time = cp.event, cp.stream, hearth.get_elapsed_time
# The rest is the same for both.

kernels = cp.RawModule(
    code=r"""
    extern "C" __global__ void add(float* x) { x[threadIdx.x] += 1; }
    extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }
    """
)
add, twice = kernels.get_function("add"), kernels.get_function("twice")
x = cp.ones(4, dtype=np.float32)
start, between, end = Event(), Event(disable_timing=True), Event()
first, second = Stream(non_blocking=True), Stream(non_blocking=True)
with first:
    start.record()
    add((1,), (4,), (x,))
    between.record(first)
second.wait_event(between)
with second:
    twice((1,), (4,), (x,))
    second.record(end)
end.synchronize()
print(get_elapsed_time(start, end) > 0, x.get())
