"""The memory limit of a device process on a real GPU: the memory that the pool holds, used or unused, stays below
it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.resources.grants import ProcessGrants
from hearthd.shared.device_spec import DeviceSpec

if TYPE_CHECKING:
    from hearthd.device.cuda.server import CudaServer

pytestmark = pytest.mark.gpu

MIB = 1 << 20
LIMIT = 1024 * MIB


class Limited:
    """A server with grants, and the messages that it sends to the front."""

    def __init__(self, server: CudaServer, granted: int | None, scrub: bool = False) -> None:
        self.server = server
        self.said: list[dict[str, Any]] = []
        outbox: Any = SimpleNamespace(put=lambda kind, payload, id=0: self.said.append(json.loads(payload)))
        self.grants = ProcessGrants(DeviceSpec(0, "cuda", 0, memory_granted=granted, scrub=scrub), server, outbox)

    def on_limit(self, limit: int) -> dict[str, Any]:
        self.grants.on_limit(Frame(Kind.LIMIT, 0, 0, 1, json.dumps({"bytes": limit}).encode()))
        return self.said.pop()


@pytest.fixture
def own() -> Iterator[CudaServer]:
    """Yields a server with an unused pool."""
    from hearthd.device.cuda.server import CudaServer

    made = CudaServer(DeviceSpec(ordinal=0, backend="cuda", index=0))
    yield made
    made.close()


def settle(server: CudaServer, *streams: Any) -> None:
    import cupy

    for stream in streams:
        cupy.cuda.ExternalStream(stream.pointer).synchronize()


def test_the_pool_never_holds_more_than_was_granted(own: CudaServer) -> None:
    limited = Limited(own, LIMIT)
    streams = [own.create_stream() for _ in range(3)]
    chance = random.Random(7)
    held: list[tuple[Any, Any]] = []
    refused = 0
    sizes = (1, 4096, MIB, 40 * MIB, 130 * MIB)
    for _ in range(2000):
        if held and chance.random() < 0.45:
            memory, stream = held.pop(chance.randrange(len(held)))
            own.free(memory, stream)
        else:
            stream = chance.choice(streams)
            try:
                held.append((limited.grants.allocate(chance.choice(sizes), stream), stream))
            except Refusal as refusal:
                assert refusal.reason == Reason.OUT_OF_MEMORY and refusal.details["granted"] == str(LIMIT)
                refused += 1
                settle(own, *streams)  # fragmented memory is returned after its stream has completed
                own.trim()
        assert own.memory_held()[0] <= LIMIT
        if chance.random() < 0.1:
            settle(own, *streams)
    assert refused
    for memory, stream in held:
        own.free(memory, stream)


def test_unused_memory_is_returned_to_the_device(own: CudaServer) -> None:
    limited = Limited(own, None)
    stream = own.create_stream()
    kept = limited.grants.allocate(64 * MIB, stream)
    dropped = limited.grants.allocate(512 * MIB, stream)
    own.free(dropped, stream)
    settle(own, stream)
    free = own.memory_info().free
    answer = limited.on_limit(0)
    assert 64 * MIB <= answer["limit"] == answer["reserved"] <= 192 * MIB, "the memory in use, rounded up"
    assert own.memory_info().free >= free + 400 * MIB
    with pytest.raises(Refusal):
        limited.grants.allocate(256 * MIB, stream)
    limited.on_limit(LIMIT)
    own.free(limited.grants.allocate(256 * MIB, stream), stream)
    own.free(kept, stream)


def test_memory_is_cleared_in_the_streams_order(own: CudaServer) -> None:
    limited = Limited(own, None, scrub=True)
    stream = own.create_stream()
    view = memoryview(bytearray(8 * MIB))
    for _ in range(5):
        memory = limited.grants.allocate(8 * MIB, stream)
        settle(own, stream)
        own.read_now(view, memory.address, 8 * MIB, 8 * MIB, 1)
        assert not any(view.tobytes())
        own.fill(memory.address, b"\xa5", 8 * MIB, stream)
        own.free(memory, stream)
