"""Waiting for a CUDA stream, which a device process itself never does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hearthd.device.cuda.server import CudaServer


def finish(server: CudaServer, stream: Any, seconds: float = 20.0) -> None:
    """Returns when the stream has completed all of its work; fails after `seconds`."""
    event = server.record(stream)
    deadline = time.monotonic() + seconds
    while not server.done(event):
        assert time.monotonic() < deadline, "the stream did not complete its work"
        time.sleep(0.0002)
    server.release_event(event)
