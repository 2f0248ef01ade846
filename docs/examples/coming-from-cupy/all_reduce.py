"""An all-reduce over two devices of one process, in place. The communicator is part of the connection.

Prints:

    [30. 30. 30.] [30. 30. 30.]
"""

# For CuPy:
#     import cupy as cp
#     import numpy as np
#     from cupy.cuda import nccl
#     def on(device):
#         cp.cuda.Device(device).use()
#         return cp
#     communicators = nccl.NcclCommunicator.initAll([0, 1])
#     def all_reduce(arrays):
#         nccl.groupStart()
#         for rank, x in enumerate(arrays):
#             on(rank)
#             stream = cp.cuda.get_current_stream()
#             communicators[rank].allReduce(
#                 x.data.ptr, x.data.ptr, x.size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr
#             )
#         nccl.groupEnd()
# For Hearth:
import numpy as np

import hearth

node = hearth.connect()
on = node.device
all_reduce = hearth.Group(node.devices[:2]).all_reduce
# The rest is the same for both.

SOURCE = 'extern "C" __global__ void scale(float* x, float by) { x[threadIdx.x] *= by; }'
arrays = [on(rank).full(3, rank + 1, dtype=np.float32) for rank in range(2)]
for rank, x in enumerate(arrays):
    on(rank).RawKernel(SOURCE, "scale")((1,), (3,), (x, np.float32(10)))
all_reduce(arrays)
print(*(x.get() for x in arrays))
