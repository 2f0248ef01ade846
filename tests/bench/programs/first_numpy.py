"""Equivalent of first_hearth.py and first_cupy.py with NumPy alone: the part that both have in common."""

import numpy as np

host = np.arange(1 << 16, dtype=np.float32)
print("first", (2 * host)[-1], flush=True)
