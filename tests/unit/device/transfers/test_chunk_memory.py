"""Chunks that are passed to the front through shared memory; the test acts as the front."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hearth_proto import descriptors
from hearth_proto.chunks import download_response
from hearth_proto.frames import SLOT, Flag, Kind
from hearth_proto.v1 import commands_pb2 as c
from hearthd.shared import chunk_ring, sealed_memory
from hearthd.shared.chunk_ring import SMALLEST, Layout
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.host_memory import Host, LockingServer
from tests.support.device.local_broker import device_process
from tests.support.device.rig import Rig

CHUNK = SMALLEST
SLOTS = Layout(4, CHUNK)
SIZE = 20 * CHUNK
BUFFER = 5
SLOTTED = int(Flag.SLOT)


class Server(LockingServer):
    """A server; `locks` is True if the system allows page-locking existing memory."""

    locks = True

    def register_host(self, address: int, size: int) -> None:
        if not self.locks:
            raise MemoryError("the system locks no more")
        super().register_host(address, size)


class Fronted(Rig[Server]):
    """A device process that shares memory for chunks with the test."""

    def __init__(self, locks: bool = True, lockable: int = 64 << 20, layout: Layout = SLOTS) -> None:
        self.files, self.their_files = descriptors.pair()
        self.layout = layout
        spec = DeviceSpec(0, "cpu", 0, cpu_threads=1, chunk_bytes=CHUNK)

        def make(spec: DeviceSpec) -> Server:
            server = Server(spec, Host(lockable), slab=4 * CHUNK)
            server.locks = locks
            return server

        super().__init__(spec, make)
        self.data = os.urandom(SIZE)
        self.call(allocate=c.Allocate(buffer=BUFFER, size=SIZE))
        for start in range(0, SIZE, CHUNK):
            chunk = self.data[start : start + CHUNK]
            self.call(write=c.Write(buffer=BUFFER, offset=start, data=chunk))

    def _main(self) -> None:
        self.server = self._make(self._spec)
        self.process = device_process(self._theirs, self._spec, self.server, self.their_files)
        self.process.run()

    def hand_over(self, body: dict[str, Any] | None = None) -> None:
        file = sealed_memory.make("test-chunk-slots", self.layout.bytes)
        self.memory = mmap.mmap(file, self.layout.bytes, prot=mmap.PROT_READ)
        message = chunk_ring.to_message(self.layout) if body is None else body
        descriptors.send(self.files, {"kind": chunk_ring.FILE, **message}, [file])
        os.close(file)

    def share(self) -> None:
        """Hands the memory over, and returns when it is in use; the first download triggers the mapping."""
        self.hand_over()
        self.fetch(1, CHUNK)
        while self.gauges()["chunk_slots"] != self.layout.slots:
            pass

    def start_read(self, transfer: int, size: int, credits: int) -> int:
        """Starts a read whose chunks are sent as far as `credits` allow, and returns the number of the call."""
        self.send(Kind.DOWNLOAD, channel=1, id=transfer, flags=credits)
        return self.start(read=c.Read(buffer=BUFFER, size=size, transfer=transfer))

    def chunk(self, transfer: int) -> tuple[int, bytes, bool, int | None]:
        """Returns the next chunk: its offset, its data, True if it is the last one, and its slot or None."""
        frame = self.until(Kind.CHUNK, transfer)
        last = bool(frame.flags & Flag.LAST)
        if not frame.flags & SLOTTED:
            offset, data = download_response(frame.payload)
            return offset, bytes(data), last, None
        slot, size = SLOT.unpack_from(frame.payload)
        start = self.layout.start(slot)
        offset, data = download_response(frame.payload[SLOT.size :] + self.memory[start : start + size])
        return offset, bytes(data), last, slot

    def give_back(self, *slots: int) -> None:
        self.send(Kind.SLOTS, id=sum(1 << slot for slot in slots))

    def fetch(self, transfer: int, size: int) -> list[int | None]:
        """Reads all bytes, returning each slot immediately. Returns the slot of each chunk, or None."""
        ident = self.start_read(transfer, size, 1)
        data, slots = b"", []
        while True:
            offset, chunk, last, slot = self.chunk(transfer)
            assert offset == len(data)
            data += chunk
            slots.append(slot)
            if slot is not None:
                self.give_back(slot)
            if last:
                break
            self.send(Kind.CREDIT, channel=1, id=transfer, flags=1)
        assert data == self.data[:size]
        assert self.answer(ident).read.size == size
        return slots

    def until_in_use(self, count: int) -> None:
        while self.in_use() != count:
            pass

    def in_use(self) -> int:
        slots: int = self.gauges()["chunk_slots_in_use"]
        return slots


def mapped() -> int:
    """Returns the number of mappings of such memory in this process, which is both the front and the device process."""
    return Path("/proc/self/maps").read_text().count("/memfd:test-chunk-slots")


Start = Callable[..., Fronted]


@pytest.fixture
def start() -> Iterator[Start]:
    rigs: list[Fronted] = []

    def begin(**options: Any) -> Fronted:
        rigs.append(Fronted(**options))
        return rigs[-1]

    yield begin
    for rig in rigs:
        rig.close()
        rig.memory.close()
        rig.files.close()
        rig.their_files.close()


def test_memory_is_mapped_at_its_first_use(start: Start) -> None:
    rig = start()
    rig.hand_over()
    assert rig.gauges()["chunk_slots"] == 0
    assert mapped() == 1, "the test's own"
    rig.fetch(1, CHUNK)
    while rig.gauges()["chunk_slots"] != SLOTS.slots:
        pass
    assert mapped() == 2


@pytest.mark.parametrize(
    ("locks", "lockable"), [(True, 64 << 20), (False, 64 << 20), (False, 0)], ids=["locked", "copied", "nothing locked"]
)
def test_every_chunk_uses_a_slot(start: Start, locks: bool, lockable: int) -> None:
    """The device copies to the slot, or this process does."""
    rig = start(locks=locks, lockable=lockable)
    rig.share()
    assert None not in rig.fetch(2, SIZE)
    assert rig.in_use() == 0


def test_small_chunk_is_sent_over_the_socket(start: Start) -> None:
    rig = start()
    rig.share()
    slots = rig.fetch(2, 2 * CHUNK + CHUNK // 2)
    assert None not in slots[:2] and slots[2] is None
    assert rig.fetch(3, 10) == [None]


def test_unresponsive_front_only_exhausts_the_slots(start: Start) -> None:
    rig = start()
    rig.share()
    ident = rig.start_read(2, SIZE, 100)
    chunks = [rig.chunk(2) for _ in range(SIZE // CHUNK)]
    assert rig.answer(ident).read.size == SIZE
    assert [offset for offset, *_ in chunks] == list(range(0, SIZE, CHUNK))
    assert b"".join(data for _, data, *_ in chunks) == rig.data, "a slot was reused before the front released it"
    assert [last for _, _, last, _ in chunks] == [False] * 19 + [True]
    slots = [slot for *_, slot in chunks if slot is not None]
    assert sorted(slots) == [0, 1, 2, 3] and rig.in_use() == 4
    assert rig.fetch(3, 4 * CHUNK) == [None] * 4
    rig.give_back(1, 3)
    assert rig.in_use() == 2
    assert set(rig.fetch(4, 4 * CHUNK)) <= {1, 3}
    rig.give_back(0, 2)
    assert rig.in_use() == 0


@contextmanager
def blocked_stream(rig: Fronted) -> Iterator[None]:
    """Makes the default stream wait until the block ends."""
    gate = threading.Event()
    rig.process.loop.post(lambda: rig.server.stream(0).submit(gate.wait))
    try:
        yield
    finally:
        gate.set()


def test_copies_that_wait_leave_slots_to_others(start: Start) -> None:
    rig = start()
    rig.share()
    with blocked_stream(rig):
        waiting = rig.start_read(2, SIZE, 100)
        rig.call(flush=c.Flush())
        assert rig.in_use() == 2, "half of them are for chunks that can be sent immediately"
        assert rig.gauges()["staging_bytes"] == SIZE, "all of it is in transit"
    assert b"".join(rig.chunk(2)[1] for _ in range(SIZE // CHUNK)) == rig.data
    assert rig.answer(waiting).read.size == SIZE


def test_copies_running_when_the_transfer_is_cancelled(start: Start) -> None:
    rig = start()
    rig.share()
    with blocked_stream(rig):
        waiting = rig.start_read(2, SIZE, 2)
        rig.until_in_use(2)
        rig.send(Kind.ABORT, channel=1, id=2)
    assert rig.answer(waiting).HasField("error")
    rig.give_back(*(slot for *_, slot in (rig.chunk(2), rig.chunk(2)) if slot is not None))
    assert rig.in_use() == 0
    assert None not in rig.fetch(3, SIZE)


def test_copies_running_when_the_session_ends(start: Start) -> None:
    rig = start()
    rig.share()
    with blocked_stream(rig):
        rig.start_read(2, SIZE, 2)
        rig.until_in_use(2)
        rig.send(Kind.CLOSE, channel=1)
        assert rig.in_use() == 2, "the device still uses them"
    rig.until(Kind.CLOSED)
    sent = rig.came(Kind.CHUNK)
    rig.give_back(*(SLOT.unpack_from(frame.payload)[0] for frame in sent if frame.flags & SLOTTED))
    rig.until_in_use(0)
    rig.send(Kind.OPEN, b"{}", channel=1)


def test_a_copy_that_the_driver_refuses_leaves_its_slot(start: Start) -> None:
    rig = start()
    rig.share()
    rig.server.refuse = 1
    assert rig.answer(rig.start_read(2, SIZE, 100)).HasField("error")
    assert rig.until(Kind.ABORT, 2)
    rig.until_in_use(0)
    assert None not in rig.fetch(3, SIZE)


@pytest.mark.parametrize(
    "body",
    [{}, {"slots": 4}, {"slots": 0, "slot_bytes": 0}, {"slots": 4, "slot_bytes": 2 * CHUNK}, {"slots": "4"}],
)
def test_invalid_chunk_memory_is_not_used(start: Start, body: dict[str, Any]) -> None:
    rig = start()
    rig.hand_over(body)
    descriptors.send(rig.files, {"kind": chunk_ring.FILE, **chunk_ring.to_message(SLOTS)}, [])
    assert rig.fetch(1, 2 * CHUNK) == [None, None]
    assert rig.gauges()["chunk_slots"] == 0
    rig.share()
    assert None not in rig.fetch(2, SIZE)
    used = rig.memory
    rig.hand_over()  # a second memory, which the process drops
    rig.memory, unused = used, rig.memory
    unused.close()
    assert None not in rig.fetch(3, SIZE)
