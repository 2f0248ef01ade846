"""Stripes of a device process without a front: memory that cannot be locked, little memory, connections that break."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from hearth_proto.frames import HEADER, STRIPE_OFFSET, Kind
from hearth_proto.pipes import STALL_S
from hearth_proto.stripes import StripeCut, announce, chunk_head, taken
from hearth_proto.v1 import commands_pb2 as c
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.host_memory import Host, LockingServer
from tests.support.device.rig import Rig

CHUNK = 64 << 10
SIZE = 20 * CHUNK + 333
CUT = StripeCut(SIZE, CHUNK)
BUFFER = 5


class Client:
    """A client that answers on a separate thread."""

    def __init__(self, rig: Rig[LockingServer], data: bytearray) -> None:
        self.data = data
        self.received: set[int] = set()
        self.order = list(reversed(range(CUT.count)))
        self.end, process_end = socket.socketpair()
        self.ended = threading.Event()
        body = {"channel": 1, "max_chunk_bytes": CHUNK, "tls": None}
        files = [process_end.detach()]
        rig.process.loop.post(lambda: rig.process.stripes.handed_over(body, files))
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while True:
                length, kind, flags, _, ident = HEADER.unpack(self._exactly(HEADER.size))
                payload = self._exactly(length)
                if kind == Kind.CREDIT:
                    for _ in range(min(flags, len(self.order))):
                        offset, size = CUT.span(self.order.pop())
                        self.end.sendall(chunk_head(ident, offset, size) + self.data[offset : offset + size])
                elif kind == Kind.STRIPE:
                    (offset,) = STRIPE_OFFSET.unpack(payload[:8])
                    self.data[offset : offset + length - 8] = payload[8:]
                    self.received.add(offset)
                    self.end.sendall(taken(ident, offset))
        except OSError:
            self.ended.set()

    def announce(self, kind: Kind, transfer: int) -> None:
        self.end.sendall(announce(kind, transfer, CHUNK))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            received_bytes = self.end.recv(size - len(data))
            if not received_bytes:
                raise ConnectionError("the stripe has ended")
            data += received_bytes
        return data

    def close(self) -> None:
        self.end.shutdown(socket.SHUT_RDWR)
        self.thread.join(10)
        self.end.close()


Make = Callable[[int, int], Rig[LockingServer]]


@pytest.fixture
def make() -> Iterator[Make]:
    rigs: list[Rig[LockingServer]] = []

    def start(lockable: int, staging: int) -> Rig[LockingServer]:
        spec = DeviceSpec(0, "cpu", 0, staging_bytes=staging)
        rigs.append(Rig(spec, lambda device_spec: LockingServer(device_spec, Host(lockable), slab=4 * CHUNK)))
        rigs[-1].call(allocate=c.Allocate(buffer=BUFFER, size=SIZE))
        return rigs[-1]

    yield start
    for rig in rigs:
        rig.close()


@pytest.mark.parametrize(
    ("lockable", "staging"),
    [(64 << 20, 64 << 20), (4 * CHUNK, 64 << 20), (64 << 20, 2 * CHUNK), (0, 64 << 20)],
    ids=["plenty", "little to lock", "little staging", "nothing to lock"],
)
def test_round_trip_over_stripes(make: Make, lockable: int, staging: int) -> None:
    rig = make(lockable, staging)
    data = bytearray(os.urandom(SIZE))
    client = Client(rig, data)
    client.announce(Kind.UPLOAD, 1)
    rig.call(write=c.Write(buffer=BUFFER, transfer=1, size=SIZE))
    downloader = Client(rig, bytearray(SIZE))
    second_downloader = Client(rig, downloader.data)
    downloader.announce(Kind.DOWNLOAD, 2)
    second_downloader.announce(Kind.DOWNLOAD, 2)
    rig.call(read=c.Read(buffer=BUFFER, transfer=2, size=SIZE))
    assert downloader.data == data and len(downloader.received | second_downloader.received) == CUT.count
    for peer in (client, downloader, second_downloader):
        peer.close()
    while rig.gauges()["staging_bytes"]:  # until the process has noticed their end
        pass


def test_a_session_that_closes_ends_its_stripes(make: Make) -> None:
    rig = make(64 << 20, 64 << 20)
    client = Client(rig, bytearray(SIZE))
    client.order = []  # it never sends, so that its credits are unused when the session is closed
    client.announce(Kind.UPLOAD, 1)
    rig.start(write=c.Write(buffer=BUFFER, transfer=1, size=SIZE))
    while rig.gauges()["staging_bytes"] == 0:
        pass
    rig.send(Kind.CLOSE, channel=1)
    rig.until(Kind.CLOSED)
    assert client.ended.wait(10)
    while (gauges := rig.gauges())["staging_bytes"] or gauges["stripes"]:
        pass
    rig.send(Kind.OPEN, b"{}", channel=1)
    client.end.close()


def test_stalled_client_loses_staging_memory_and_continues_on_another_stripe(make: Make) -> None:
    """Checks that memory waiting for the client is taken back, and that its transfer continues over another stripe."""
    rig = make(64 << 20, 64 << 20)
    rig.process.stripes.stall = 0.2
    data = bytearray(os.urandom(SIZE))
    stalled = Client(rig, bytearray(SIZE))
    stalled.order = []
    stalled.announce(Kind.UPLOAD, 1)
    call = rig.start(write=c.Write(buffer=BUFFER, transfer=1, size=SIZE))
    assert stalled.ended.wait(10)
    while rig.gauges()["staging_bytes"]:
        pass
    rig.process.stripes.stall = STALL_S
    client = Client(rig, data)
    client.announce(Kind.UPLOAD, 1)
    rig.answer(call)
    downloader = Client(rig, bytearray(SIZE))
    downloader.announce(Kind.DOWNLOAD, 2)
    rig.call(read=c.Read(buffer=BUFFER, transfer=2, size=SIZE))
    assert downloader.data == data
    stalled.end.close()
    for peer in (client, downloader):
        peer.close()


def test_stripe_that_arrives_before_its_session(make: Make) -> None:
    rig = make(64 << 20, 64 << 20)
    test_end, process_end = socket.socketpair()
    files = [process_end.detach()]
    body = {"channel": 9, "max_chunk_bytes": CHUNK, "tls": None}
    rig.process.loop.post(lambda: rig.process.stripes.handed_over(body, files))
    rig.gauges()
    rig.send(Kind.OPEN, b"{}", channel=9)
    test_end.settimeout(10)
    assert HEADER.unpack(test_end.recv(HEADER.size))[1] == Kind.LIVE
    test_end.close()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"channel": 1},
        {"channel": "x", "max_chunk_bytes": CHUNK},
        {"channel": 1, "max_chunk_bytes": 0},
        {"channel": 1, "max_chunk_bytes": 1 << 40},
        {"channel": 1, "max_chunk_bytes": CHUNK, "tls": {}},
        {"channel": 1, "max_chunk_bytes": CHUNK, "tls": {"certificate": "", "key": "", "secret": "zz"}},
        {"channel": 1, "max_chunk_bytes": CHUNK, "tls": {"certificate": "x", "key": "y", "secret": "00" * 32}},
    ],
)
def test_malformed_message_closes_the_connection(make: Make, body: dict[str, object]) -> None:
    """Checks that the connection is closed, and that the process continues."""
    rig = make(64 << 20, 64 << 20)
    test_end, process_end = socket.socketpair()
    files = [process_end.detach()]
    rig.process.loop.post(lambda: rig.process.stripes.handed_over(body, files))
    test_end.settimeout(10)
    assert test_end.recv(1) == b""
    test_end.close()
    rig.process.loop.post(lambda: rig.process.stripes.handed_over(body, []))
    assert rig.gauges()["stripes"] == 0


def test_numbers_of_any_size(make: Make) -> None:
    rig = make(64 << 20, 64 << 20)
    client = Client(rig, bytearray(SIZE))
    client.end.sendall(struct.pack("<IHHIQQ", 8, Kind.TAKEN, 0, 0, (1 << 64) - 1, (1 << 64) - 1))
    client.end.sendall(announce(Kind.UPLOAD, (1 << 64) - 1, CHUNK))
    rig.gauges()
    client.close()
