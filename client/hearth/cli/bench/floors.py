"""Floors of this machine without a daemon: the same transports, to a server that does no work.

The gRPC client is the synchronous one, like Hearth's.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from hearth.cli.bench.floor_process import FloorError
from hearth.cli.bench.floor_server import CHUNK, DOWN, HEADER, SERVICE, UP
from hearth.cli.bench.sampling import After, Measurement, Once
from hearth.cli.format.units import size_name

if TYPE_CHECKING:
    from hearth.cli.bench.floor_process import FloorProcess

_LAUNCH = 160
"""Approximate size, in bytes, of a batch with a launch and a synchronize."""
_RECORD = struct.Struct("<104s")
"""Layout of a packed launch."""
_PER_BATCH = 64
_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
_STUCK_S = 60.0


class Floors:
    """Measurements of this machine, each for comparison with a figure of the daemon."""

    def __init__(self, process: FloorProcess) -> None:
        self._process = process

    def launch(self) -> Measurement:
        """Returns the floor of launch + synchronize."""
        return self._echo("launch", _LAUNCH)

    def small(self, size: int) -> Measurement:
        """Returns the floor of a write and a read of `size` bytes."""
        return self._echo("small", size)

    def launches(self, count: int) -> Measurement:
        """Returns the floor of `count` pipelined launches.

        Their records are sent ahead, and the server does not read them.
        """
        name = f"bare gRPC, {_PER_BATCH} records a message"
        return Measurement("records", name, "1/s", partial(self._records, count), count)

    def connection(self) -> Measurement:
        """Returns the floor of a new connection's first result."""
        return Measurement("connection", "bare gRPC, new connection + echo", "ms", self._connecting)

    def upload(self, size: int) -> Measurement:
        """Returns the floor of an upload of `size` bytes."""
        return Measurement(
            f"send {size}", f"bare socket, {size_name(size)}", "GB/s", partial(self._sending, size), size
        )

    def download(self, size: int) -> Measurement:
        """Returns the floor of a download of `size` bytes."""
        return Measurement(
            f"receive {size}", f"bare socket, {size_name(size)}", "GB/s", partial(self._receiving, size), size
        )

    def copy(self, size: int) -> Measurement:
        """Returns a second floor of uploads and downloads: a copy from memory to memory in one process."""
        return Measurement(f"copy {size}", f"NumPy copy, {size_name(size)}", "GB/s", partial(_copying, size), size)

    def _echo(self, key: str, size: int) -> Measurement:
        return Measurement(f"echo {key}", f"bare gRPC, echo of {size_name(size)}", "us", partial(self._echoing, size))

    # ---- gRPC ----

    @contextlib.contextmanager
    def _stream(self, method: str) -> Iterator[tuple[queue.SimpleQueue[bytes | None], Any]]:
        """Yields the queue of outgoing messages, and the answers."""
        with self._channel() as channel:
            outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            answers = channel.stream_stream(f"/{SERVICE}/{method}")(iter(outgoing.get, None))
            try:
                yield outgoing, answers
            finally:
                outgoing.put(None)

    def _channel(self) -> Any:
        import grpc

        return grpc.insecure_channel(self._process.addresses.grpc, options=_OPTIONS)

    @contextlib.contextmanager
    def _echoing(self, size: int) -> Iterator[Once]:
        message = b"x" * size
        with self._stream("Echo") as (outgoing, answers):

            def once() -> None:
                outgoing.put(message)
                next(answers)

            yield once

    @contextlib.contextmanager
    def _records(self, count: int) -> Iterator[Once]:
        with self._stream("Acknowledge") as (outgoing, answers):

            def once() -> None:
                firsts = range(0, count, _PER_BATCH)
                for first in firsts:
                    outgoing.put(b"".join([_RECORD.pack(b"x") for _ in range(first, min(first + _PER_BATCH, count))]))
                for _ in firsts:
                    next(answers)

            yield once

    @contextlib.contextmanager
    def _connecting(self) -> Iterator[Once]:
        def once() -> After:
            stack = contextlib.ExitStack()
            outgoing, answers = stack.enter_context(self._stream("Echo"))
            outgoing.put(b"x")
            next(answers)
            return stack.close

        yield once

    # ---- sockets ----

    @contextlib.contextmanager
    def _socket(self) -> Iterator[socket.socket]:
        raw = self._process.addresses.raw
        family = socket.AF_UNIX if self._process.kind == "unix" else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(_STUCK_S)
            connection.connect(f"\0{raw}" if self._process.kind == "unix" else ("127.0.0.1", int(raw)))
            yield connection

    @contextlib.contextmanager
    def _sending(self, size: int) -> Iterator[Once]:
        data = bytes(size)
        with self._socket() as connection:

            def once() -> None:
                connection.sendall(HEADER.pack(UP, size))
                connection.sendall(data)
                if not connection.recv(1):
                    raise _ended()

            yield once

    @contextlib.contextmanager
    def _receiving(self, size: int) -> Iterator[Once]:
        data = memoryview(bytearray(size))
        with self._socket() as connection:

            def once() -> None:
                connection.sendall(HEADER.pack(DOWN, size))
                received = 0
                while received < size:
                    count = connection.recv_into(data[received : received + CHUNK])
                    if not count:
                        raise _ended()
                    received += count

            yield once


@contextlib.contextmanager
def _copying(size: int) -> Iterator[Once]:
    import numpy as np

    source, destination = np.ones(size, np.uint8), np.zeros(size, np.uint8)

    def once() -> None:
        np.copyto(destination, source)

    yield once


def _ended() -> FloorError:
    return FloorError("the process that this machine's floors are measured with has ended.")
