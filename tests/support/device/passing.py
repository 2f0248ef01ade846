"""A device process with lanes, in which eligible batches take the inline path, or none does."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from hearthd.device.cpu.server import CpuServer
from tests.support.device.lane_rig import Laned


class Polled(CpuServer):
    """A CPU device that does not announce completions, as CUDA does not: they must be polled."""

    def on_progress(self, wake: Any) -> bool:
        super().on_progress(None)
        return False


class Passing(Laned):
    """A device process with lanes. With `inline_path` False all batches take the queued path."""

    def __init__(self, server: type[CpuServer], inline_path: bool = True) -> None:
        self._taken = self.offered = 0
        self.inline_path = inline_path
        self.channels = itertools.count(2)
        super().__init__(server)

    @property
    def taken(self) -> int:
        """Returns the number of batches that took the inline path. Waits first, because a batch is answered before it
        is counted."""
        self.barrier()
        return self._taken

    def started(self) -> None:
        inline_path = self.process.executor.inline_path
        inline_path.execute = self._counting(inline_path.execute)

    def _counting(self, real: Callable[..., bool]) -> Callable[..., bool]:
        def execute(*arguments: Any) -> bool:
            self.offered += 1
            taken = self.inline_path and real(*arguments)
            self._taken += taken
            return taken

        return execute
