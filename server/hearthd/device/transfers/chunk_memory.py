"""Chunk memory: shared with the front, for chunks of downloads.

The device copies into a slot of this memory, and the front builds its message from the slot, so that the socket carries
little more than the slot's number.

If no slot is free, the chunk's bytes are sent over the socket: a chunk never waits for a slot.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Refusal
from hearthd.device.backend.server import ComputeServer
from hearthd.device.platform.fd_passing import DescriptorSocket
from hearthd.device.platform.log import ProcessLog
from hearthd.device.platform.telemetry import Telemetry
from hearthd.device.transfers.chunk_slots import ChunkSlots
from hearthd.device.transfers.segment_mapper import Post, SegmentMapper
from hearthd.shared import chunk_ring
from hearthd.shared.chunk_ring import SMALLEST, Layout


class ChunkSlot:
    """Memory for one chunk, usable as the target of copies like a `HostBuffer`."""

    __slots__ = ("address", "number", "reserved_ns", "size", "view")

    def __init__(self, number: int, address: int, size: int) -> None:
        self.number = number
        self.address = address
        self.size = size
        self.view = memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
        self.reserved_ns = 0
        """Time at which the slot was reserved for a copy, in nanoseconds (`time.perf_counter_ns`)."""


class DownloadChunkMemory:
    """Slots for the chunks of downloads.

    Device-handle thread only. The memory is mapped at the first download and stays mapped until the process ends.
    """

    def __init__(self, server: ComputeServer, telemetry: Telemetry, post: Post) -> None:
        self._telemetry = telemetry
        self._mapper = SegmentMapper(server.register_host, server.unregister_host, post)
        self._journal: ProcessLog | None = None
        self._has_layout = False
        """True once a valid file has arrived from the front."""
        self._needed = False
        """True from the first download on."""
        self._offer: tuple[int, Layout] | None = None
        """The front's file and its layout, until the first download maps it."""
        self._policy = ChunkSlots(0)
        self._slots: list[ChunkSlot] = []
        self._locked = False
        """True if the memory is page-locked, so that the device can copy to it directly."""

    def listen(
        self,
        control: Callable[[Kind, Callable[[Frame], None]], None],
        descriptors: DescriptorSocket,
        journal: ProcessLog,
    ) -> None:
        """Registers the handlers of the front's messages."""
        self._journal = journal
        control(Kind.SLOTS, self._returned)
        descriptors.register(chunk_ring.FILE, self._offered)

    def gauges(self) -> dict[str, int]:
        """Returns the number of slots and of those in use, for the metrics."""
        return {"chunk_slots": self._policy.count, "chunk_slots_in_use": self._policy.in_use}

    @property
    def reserved_bytes(self) -> int:
        """Total size, in bytes, of the slots reserved for copies under way."""
        return self._policy.reserved * self._slots[0].size if self._slots else 0

    # ---- mapping ----

    def _offered(self, body: dict[str, Any], files: list[int]) -> None:
        layout = chunk_ring.from_message(body)
        if not self._has_layout and layout.slots and len(files) == 1 and os.fstat(files[0]).st_size == layout.bytes:
            self._has_layout = True
            self._offer = files[0], layout
            if self._needed:
                self.want()
            return
        for file in files:
            os.close(file)
        self._warn("chunk_slots", f"{len(files)} files came with {body}")

    def want(self) -> None:
        """Starts to map the memory; called at each download, and effective at the first."""
        self._needed = True
        if self._offer is not None:
            (file, layout), self._offer = self._offer, None
            self._mapper.map(file, layout.bytes, lambda: True, partial(self._mapped, layout), self._failed)

    def _mapped(self, layout: Layout, address: int, locked: int, reason: str) -> None:
        self._locked = locked >= layout.bytes
        size = layout.slot_bytes
        self._slots = [ChunkSlot(number, address + layout.start(number), size) for number in range(layout.slots)]
        self._policy = ChunkSlots(layout.slots)
        if reason:
            self._warn("chunk_slots_not_locked", reason)

    def _failed(self, refusal: Refusal) -> None:
        self._warn("chunk_slots", refusal.message)

    def _warn(self, event: str, reason: str) -> None:
        if self._journal is not None:
            self._journal.warning(event, why=reason)

    # ---- chunks ----

    def reserve(self, size: int) -> ChunkSlot | None:
        """Reserves a slot into which the device may copy `size` bytes.

        The caller must call `send` or `drop` after the copy. Returns None if no slot is available for a copy.
        """
        slot = self._slot(size, self._policy.reserve) if self._locked else None
        if slot is not None:
            slot.reserved_ns = time.perf_counter_ns()
        return slot

    def drop(self, slot: ChunkSlot) -> None:
        """Frees a reserved slot whose contents are not sent. The device must have finished with the slot."""
        self._policy.drop(slot.number)

    def send(self, slot: ChunkSlot) -> None:
        """Passes a reserved slot to the front; the caller sends the message about it next."""
        self._policy.send(slot.number)
        self._telemetry.transfer.observe(time.perf_counter_ns() - slot.reserved_ns)
        self._telemetry.chunks_in_slots += 1

    def fill(self, data: memoryview | bytes) -> ChunkSlot | None:
        """Copies `data` into a slot and passes the slot to the front, as `send` does.

        Returns None if no slot is free.
        """
        slot = self._slot(len(data), self._policy.send)
        if slot is not None:
            slot.view[: len(data)] = data
            self._telemetry.chunks_in_slots += 1
        return slot

    def _slot(self, size: int, choose: Callable[[], int | None]) -> ChunkSlot | None:
        """Returns the slot that `choose` selects; None if there is none, or if chunks of this size do not use slots."""
        if not self._slots or not SMALLEST <= size <= self._slots[0].size:
            return None
        number = choose()
        return None if number is None else self._slots[number]

    def _returned(self, frame: Frame) -> None:
        bits = frame.id
        while bits:
            number = bits.bit_length() - 1
            bits ^= 1 << number
            self._policy.free(number)
