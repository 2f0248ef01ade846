"""Calls of `CudaServer` that block until the device has finished, for tests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hearthd.device.backend.compiler import Source

if TYPE_CHECKING:
    from hearthd.device.cuda.launch import CudaFunction
    from hearthd.device.cuda.server import CudaServer
    from hearthd.device.cuda.streams import Event, Stream


def build(server: CudaServer, code: str, name: str, **options: Any) -> CudaFunction:
    """Compiles CUDA C++ code, loads it, and returns the function `name`. `options` are those of `Source`."""
    return server.load(server.compiler.compile(Source(code, **options))).function(name)


def until(server: CudaServer, event: Event, seconds: float = 20.0) -> None:
    """Waits until the event is done, at most `seconds`, and releases it."""
    deadline = time.monotonic() + seconds
    while not server.done(event):
        assert time.monotonic() < deadline, "the event did not complete"
        time.sleep(0.0002)
    server.release_event(event)


def finish(server: CudaServer, stream: Stream) -> None:
    """Waits until all work of the stream is done."""
    until(server, server.record(stream))


def put(server: CudaServer, address: int, data: bytes, stream: Stream) -> None:
    """Uploads `data` to device memory, and waits for the copy."""
    host = server.allocate_host(len(data))
    host.view[:] = data
    server.upload(address, host, 0, len(data), stream)
    finish(server, stream)
    server.free_host(host)


def get(server: CudaServer, address: int, size: int, stream: Stream) -> bytes:
    """Downloads `size` bytes of device memory."""
    host = server.allocate_host(size)
    server.download(host, 0, address, size, stream)
    finish(server, stream)
    data = bytes(host.view)
    server.free_host(host)
    return data
