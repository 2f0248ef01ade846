"""Memory that one device process shares with the front, for chunks of downloads (see `hearthd.shared.chunk_ring`).

The message to the client is assembled directly from the memory to which the device has copied the data.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

import structlog

from hearth_proto.frames import SLOT
from hearthd.front.links.fd_passing import Descriptors
from hearthd.shared import chunk_ring, sealed_memory
from hearthd.shared.chunk_ring import Layout

log = structlog.get_logger("hearthd.link")


class ChunkMemory:
    """The front's end of the chunk memory; without `memory` there is none.

    The memory is written by a process that runs arbitrary kernels, and may change while it is read. Its contents are
    only passed on as data to a client of that process.
    """

    def __init__(self, layout: Layout = chunk_ring.NONE, memory: mmap.mmap | None = None) -> None:
        self._layout = layout
        self._memory = memory

    @classmethod
    def of(cls, chunk_bytes: int, descriptors: Descriptors | None, device: int) -> ChunkMemory:
        """Creates memory for chunks of up to `chunk_bytes`, and hands it to the device process.

        Its pages are allocated when the process first uses them. If the memory cannot be created, chunks go through the
        socket.
        """
        layout = chunk_ring.layout(chunk_bytes)
        if descriptors is None or not layout.slots:
            return cls()
        file = -1
        try:
            file = sealed_memory.make("hearth-chunk-slots", layout.bytes)
            memory = mmap.mmap(file, layout.bytes, mmap.MAP_SHARED, mmap.PROT_READ)
            descriptors.send(chunk_ring.FILE, chunk_ring.to_message(layout), [file])
            return cls(layout, memory)
        except OSError as error:
            log.warning("chunk_slots", device=device, error=str(error))
            return cls()
        finally:
            if file >= 0:
                os.close(file)

    def receive_chunk(self, payload: bytes, release_slot: Callable[[int], None]) -> bytes:
        """Returns the DownloadResponse of a CHUNK whose data is in a slot; the data is copied once.

        `release_slot` is called with the slot, which is free from then on. Raises ValueError for a slot that does not
        exist, and for more bytes than a slot has.
        """
        if len(payload) < SLOT.size:
            raise ValueError(f"{len(payload)} bytes name no slot")
        slot, size = SLOT.unpack_from(payload)
        if self._memory is None or slot >= self._layout.slots or size > self._layout.slot_bytes:
            raise ValueError(f"{size} bytes in slot {slot} of {self._layout.slots} of {self._layout.slot_bytes} bytes")
        start = self._layout.start(slot)
        with memoryview(self._memory) as memory, memory[start : start + size] as data:
            message = b"".join((memoryview(payload)[SLOT.size :], data))
        release_slot(slot)
        return message

    def release_pages(self) -> None:
        """Releases the pages while no download runs.

        Data that was read then no longer counts as memory of this process.
        """
        if self._memory is not None:
            self._memory.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Unmaps the memory; `receive_chunk` then raises ValueError. A second call does nothing."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None
