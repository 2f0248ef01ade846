"""Copies from and to shared memory, and their answers."""

from __future__ import annotations

import json
import mmap
import threading
from typing import Any

import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.cpu.server import CpuServer
from tests.support.device import segment_client
from tests.support.device.lane_rig import Client, sync
from tests.support.device.passing import Passing, Polled
from tests.support.device.rig import Command

SIZE = 256
"""Size of the buffer in bytes; the segment is twice as large."""


class Refusing:
    """A driver that accepts `takes` copies, and refuses the next one."""

    takes = -1

    def _drive(self) -> None:
        self.takes -= 1
        if self.takes == -1:
            raise Refusal(Reason.INTERNAL, "the driver refuses this copy", fix="none")

    def upload(self, *args: Any) -> None:
        self._drive()
        super().upload(*args)  # type: ignore[misc]

    def download(self, *args: Any) -> None:
        self._drive()
        super().download(*args)  # type: ignore[misc]


class Told(Refusing, CpuServer):
    pass


class Asked(Refusing, Polled):
    pass


class Sharing(Passing):
    """A device process with shared memory. `signalled` counts the requests for which the device wrote a signal."""

    server: Any

    def started(self) -> None:
        super().started()
        self.signalled = 0
        self.connections: list[segment_client.Client] = []
        self.memories: list[mmap.mmap] = []

    def share(self, channel: int = 1, size: int = 2 * SIZE) -> tuple[segment_client.Client, mmap.mmap]:
        connection = segment_client.hand_over(self.files, channel)
        assert connection.next().kind == Kind.LIVE
        self.connections.append(connection)
        self.memories.append(connection.share(1, size))
        return connection, self.memories[-1]

    def stop(self) -> None:
        for connection, memory in zip(self.connections, self.memories, strict=True):
            connection.end.close()
            memory.close()
        self.settled()
        super().stop()

    def settled(self) -> None:
        """Returns when no memory is shared."""
        for _ in range(2000):
            if not self.gauges()["segments"]:
                return
            threading.Event().wait(0.005)
        raise AssertionError("a segment is still there")

    def all_counters(self) -> dict[str, Any]:
        self.send(Kind.STATS, id=79)
        stats: dict[str, Any] = json.loads(self.until(Kind.STATS, 79).payload)
        return stats


def write(size: int = 8, offset: int = 0, start: int = 0, **more: Any) -> Command:
    handles = {"buffer": more.pop("buffer", 1), "segment": more.pop("segment", 1)}
    shared = c.Shared(segment=handles["segment"], offset=start)
    return Command(write=c.Write(buffer=handles["buffer"], size=size, offset=offset, shared=shared), **more)


def read(size: int = 8, offset: int = 0, start: int = SIZE, **more: Any) -> Command:
    handles = {"buffer": more.pop("buffer", 1), "segment": more.pop("segment", 1)}
    shared = c.Shared(segment=handles["segment"], offset=start)
    return Command(read=c.Read(buffer=handles["buffer"], size=size, offset=offset, shared=shared), **more)


def begin(rig: Sharing) -> tuple[Client, segment_client.Client, mmap.mmap]:
    """Returns a lane, a connection for segments, and a segment's memory; buffer 2 has half of the segment's size."""
    client = rig.lane()
    connection, memory = rig.share()
    client.batch(Command(allocate=c.Allocate(buffer=2, size=SIZE)), sync(1))
    client.response()
    return client, connection, memory


def shut(rig: Sharing, stream: int = 0) -> threading.Event:
    """Makes later work of the stream wait until the returned gate is set."""
    gate = threading.Event()
    session = rig.process.executor.session(1)
    assert session is not None
    session.streams.items[stream].track.stream.submit(gate.wait)
    return gate


def unanswered(client: Client) -> None:
    """Checks that the client has received only acks."""
    client.end.setblocking(False)
    with pytest.raises(BlockingIOError):
        while client.next().kind == Kind.ACK:
            pass
    client.end.settimeout(30)
