"""Number of stripes, size of chunks, and refused stripes."""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth import errors
from hearth.transfer import plan, stripe_pool
from hearth_proto import frames
from hearth_proto.frames import HEADER, Kind
from hearth_proto.v1 import device_pb2

MIB = 1 << 20


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allows stripes more time to open, as is needed on a busy machine."""
    monkeypatch.setattr(stripe_pool, "OPEN_S", 60.0)
    monkeypatch.setattr(stripe_pool, "_GATHER_S", 60.0)


@given(st.integers(0, 1 << 40), st.integers(0, 8))
def test_each_stripe_has_work(size: int, most: int) -> None:
    count = plan.stripes(size, most)
    assert 0 <= count <= most
    assert not count or size // count >= 4 * MIB
    assert count or not most or size < plan.STRIPED_BYTES


@given(st.integers(plan.STRIPED_BYTES, 1 << 40), st.integers(1, 8), st.integers(64 << 10, 16 * MIB))
def test_chunk_sizes_are_within_the_limits_of_the_daemon(size: int, count: int, most: int) -> None:
    chunk = plan.stripe_chunk(size, count, most)
    assert min(MIB, most) <= chunk <= most
    if size >= 128 * MIB and count == 8:
        assert chunk == min(most, 1 << (size // 32).bit_length() - 1)


class Door:
    """Fake daemon that opens stripes and gives predefined answers."""

    target = "127.0.0.1:1"

    def __init__(self, lively: int = 0, error: errors.HearthError | None = None) -> None:
        self.asked: list[int] = []
        self.lively = lively
        self.error = error
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.kept: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def open_bulk(self, request: device_pb2.OpenBulkRequest) -> device_pb2.OpenBulkResponse:
        self.asked.append(request.stripes)
        if self.error is not None:
            raise self.error
        port = self.listener.getsockname()[1]
        return device_pb2.OpenBulkResponse(tickets=[b"t" * 32] * request.stripes, port=port, max_chunk_bytes=4 * MIB)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            got = connection.recv(HEADER.size + 32, socket.MSG_WAITALL)
            if self.lively and HEADER.unpack(got[: HEADER.size])[1] == Kind.TICKET:
                self.lively -= 1
                connection.sendall(frames.encode(Kind.LIVE))
                self.kept.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        self.listener.close()
        for each in self.kept:
            each.close()


def opened(door: Any, retry_s: float = stripe_pool.RETRY_S) -> stripe_pool.Stripes:
    connection: Any = SimpleNamespace(transport=door, token="token", ordinal=0)
    return stripe_pool.Stripes(connection, retry_s)


def test_unsupported_stripes_are_not_requested_again() -> None:
    door = Door(error=errors.UnsupportedError("none here", reason="UNSUPPORTED"))
    of = opened(door)
    for generation in (1, 1, 2):
        assert of.open(generation, 4) == []
    assert door.asked == [4]
    door.close()


def test_no_stripe_can_be_opened() -> None:
    """Stripes are requested again, but not immediately."""
    door = Door()
    of = opened(door)
    assert of.open(1, 3) == of.open(1, 3) == [] and door.asked == [3]
    of.close()
    of = opened(door, retry_s=0.1)
    assert of.open(1, 3) == [] and door.asked == [3, 3]
    door.lively = 3
    time.sleep(0.2)
    assert len(of.open(1, 3)) == 3 and door.asked == [3, 3, 3]
    of.close()
    door.close()


def test_only_some_stripes_can_be_opened() -> None:
    door = Door(lively=2)
    of = opened(door)
    assert len(of.open(1, 4)) == 2 and len(of.open(1, 4)) == 2 and door.asked == [4]
    of.close()
    door.close()


def test_new_generation_opens_new_stripes() -> None:
    door = Door(lively=4)
    of = opened(door)
    first = of.open(1, 2)
    second = of.open(2, 2)
    assert len(second) == 2 and not set(first) & set(second) and door.asked == [2, 2]
    of.close()
    door.close()


def test_closed_stripes_open_nothing() -> None:
    door = Door(lively=1)
    of = opened(door)
    of.close()
    assert of.open(1, 1) == [] and not door.asked
    door.close()


@pytest.mark.parametrize(("target", "host"), [("box:7421", "box"), ("[::1]:7421", "::1"), ("10.0.0.1:1", "10.0.0.1")])
def test_the_host_of_the_calls(target: str, host: str) -> None:
    assert stripe_pool.host_of(target) == host
