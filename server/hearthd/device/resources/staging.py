"""Staging: page-locked host memory for copies, up to a cap. A copy that finds none waits instead of failing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from hearth_proto.reasons import Refusal
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.backend.server import ComputeServer
from hearthd.device.resources.drop_queue import DropQueue
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.stream_pool import PooledStream, StreamPool

SMALL = 64 << 10
"""Buffers below this size, in bytes, share an event with others (`DropQueue`). A batch of them withholds at most 4 MiB,
however long its work takes."""


class Staging:
    """Host buffers that are lent until the copy through them is done. Each is returned once, in any order."""

    def __init__(self, server: ComputeServer, cap: int, tracks: StreamPool, on_room: Callable[[], None]) -> None:
        self._server = server
        self._cap = cap
        self._tracks = tracks
        self._on_room = on_room
        self._lent: dict[HostBuffer, tuple[DeviceSession | None, int]] = {}
        self.on_return: Callable[[int], None] = lambda nanoseconds: None
        """Called with the time for which a buffer was lent, in nanoseconds."""
        self._dropped: dict[PooledStream, DropQueue[HostBuffer]] = {}  # tracks that have an open batch
        self._starved = False
        self._bytes_by_tenant: dict[str, int] = {}  # bytes lent, by tenant
        self.in_use = 0

    def acquire(self, size: int, session: DeviceSession | None = None) -> HostBuffer | None:
        """Returns a buffer of at least `size` bytes, or None while there is none.

        If the result is None, the waiting command is tried again when memory becomes free.

        One copy larger than the cap is allowed while nothing else is lent. The memory counts for `session`, and is
        limited by its tenant's quota. Raises Refusal(OUT_OF_MEMORY) if the host locks no more memory and no memory is
        lent.
        """
        buffer = self.find(size, session)
        if buffer is None and not self.in_use:
            refusal = self.refusal(size)
            if refusal is not None:
                raise refusal
        return buffer

    def find(self, size: int, session: DeviceSession | None = None) -> HostBuffer | None:
        """Returns a buffer or None, as `acquire` does, but does not raise.

        For a command that can also do without the buffer; see `refusal`.
        """
        if (not self.in_use or self.in_use + size <= self._cap) and (
            session is None or not session.pinned_bytes or self._within_quota(size, session)
        ):
            buffer = self._server.allocate_host(size)
            if buffer is not None:
                self.in_use += buffer.size
                self._lent[buffer] = session, time.perf_counter_ns()
                if session is not None:
                    session.bytes_pinned += buffer.size
                    self._bytes_by_tenant[session.tenant] = self._bytes_by_tenant.get(session.tenant, 0) + buffer.size
                return buffer
        self._starved = True
        self.flush()  # buffers that may already be free must not wait for the end of the loop iteration
        return None

    def _within_quota(self, size: int, session: DeviceSession) -> bool:
        """True if the session's tenant, which has a quota, may have `size` more bytes lent.

        One copy larger than the quota is allowed while the tenant has nothing else lent.
        """
        lent = self._bytes_by_tenant.get(session.tenant, 0)
        return not lent or lent + size <= session.pinned_bytes

    def refusal(self, size: int) -> Refusal | None:
        """Returns the reason why the host currently locks no more memory; None if it has not refused recently."""
        return self._server.host_refusal(size)

    def drop(self, track: PooledStream, buffer: HostBuffer) -> None:
        """Returns a buffer when the commands submitted to the track so far, one of which uses the buffer, are done."""
        queue = self._dropped.get(track)
        if queue is None:
            queue = self._dropped[track] = DropQueue()
        if queue.push(buffer, buffer.size) or buffer.size >= SMALL:
            self._close(track)

    def flush(self) -> None:
        """Closes every batch, so that the buffers are returned as soon as the device has finished with them."""
        if self._dropped:
            for track in list(self._dropped):
                self._close(track)

    def poll(self) -> None:
        """Lets waiting copies try again if the backend has more memory for them."""
        if self._starved and self._server.host_grown():
            self._starved = False
            self._on_room()

    def release(self, buffer: HostBuffer) -> None:
        """Returns a buffer. A second call has no effect."""
        self._release((buffer,))

    def _close(self, track: PooledStream) -> None:
        batch = self._dropped.pop(track).close()
        self._tracks.after_commands(track, partial(self._release, batch))

    def _release(self, buffers: Iterable[HostBuffer]) -> None:
        for buffer in buffers:
            if buffer not in self._lent:
                continue
            session, lent_ns = self._lent.pop(buffer)
            self.on_return(time.perf_counter_ns() - lent_ns)
            if session is not None:
                session.bytes_pinned -= buffer.size
                remaining = self._bytes_by_tenant.pop(session.tenant) - buffer.size
                if remaining:
                    self._bytes_by_tenant[session.tenant] = remaining
            self.in_use -= buffer.size
            self._server.free_host(buffer)
        if self._starved:
            self._starved = False
            self._on_room()
