"""Structures, passed by value as NumPy records: a built-in vector, and a structure that contains others.

Prints:

    [21. 42. 63.]
"""

# For CuPy:
#     import cupy as cp
#     import numpy as np
# For Hearth:
import numpy as np

import hearth

cp = hearth.device()
# The rest is the same for both.

float3 = np.dtype({"names": ["x", "y", "z"], "formats": [np.float32] * 3})
line = np.dtype({"names": ["start", "direction", "steps"], "formats": [float3, float3, np.int32]}, align=True)
follow = cp.RawKernel(
    r"""
    struct Line { float3 start, direction; int steps; };
    extern "C" __global__
    void follow(Line line, float3 scale, float* end) {
        end[0] = scale.x * (line.start.x + line.steps * line.direction.x);
        end[1] = scale.y * (line.start.y + line.steps * line.direction.y);
        end[2] = scale.z * (line.start.z + line.steps * line.direction.z);
    }
    """,
    "follow",
)
given = np.zeros((), line)
given["start"] = (1, 2, 3)
given["direction"] = (2, 4, 6)
given["steps"] = 10
scale = np.ones(3, np.float32).view(float3)
end = cp.zeros(3, dtype=np.float32)
follow((1,), (1,), (given[()], scale, end))
print(end.get())
