"""A session that does checked work while another session is fuzzed, and whose secrets must not leak."""

from __future__ import annotations

import secrets
import threading

import numpy as np

import hearth
from tests.support.client.internals import session_of

SOURCE = """
// %(mark)s
extern "C" __global__ void work_%(mark)s(unsigned* x, unsigned k, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * 3u + k;
}
__device__ int secret_%(mark)s[4];
"""
N = 5000


class Canary:
    """Works in a separate thread from `start` to `stop`; `errors` lists the failures."""

    def __init__(self, node: hearth.Node, gpu: hearth.Device, mark: str) -> None:
        self.mark = mark
        self.node, self.gpu = node, gpu
        self.rounds = 0
        self.errors: list[str] = []
        self._on_leader_end = threading.Event()
        module = gpu.RawModule(code=SOURCE % {"mark": mark})
        self._kernel = module.get_function(f"work_{mark}")
        self._variable = module.get_global(f"secret_{mark}", np.int32)
        self._held = gpu.asarray(np.frombuffer((mark.encode() * 1000)[:16000], np.uint8))
        gpu.publish(f"weights_{mark}", self._held)
        gpu.synchronize()
        self._thread = threading.Thread(target=self._work, name="canary")

    @property
    def secrets(self) -> list[bytes]:
        """Returns texts that must not occur in answers to other sessions."""
        return [self.mark.encode(), session_of(self.node).token.encode(), self.node.session_id.encode()]

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._on_leader_end.set()
        self._thread.join(60)
        if self._thread.is_alive():
            self.errors.append("it hangs")

    def _work(self) -> None:
        try:
            while not self._on_leader_end.wait(0.01):
                self._round()
                self.rounds += 1
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")

    def _round(self) -> None:
        start = np.random.default_rng(self.rounds).integers(0, 2**32, N, np.uint32)
        x = self.gpu.asarray(start)
        expected = start
        for k in range(3):
            self._kernel((20,), (256,), (x, np.uint32(k), np.int32(N)))
            expected = expected * np.uint32(3) + np.uint32(k)
        if not (x.get() == expected).all():
            self.errors.append("a wrong result")
        if self.rounds % 20 == 0:
            good = self._held.get().tobytes() == (self.mark.encode() * 1000)[:16000]
            if not good or self._variable.get().any():
                self.errors.append("its memory was changed")


def new_mark() -> str:
    """Returns a word that occurs nowhere else."""
    return "canary" + secrets.token_hex(8)
