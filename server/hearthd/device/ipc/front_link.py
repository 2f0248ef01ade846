"""Front link: answers to the front's requests about shared memory, and the memory that processes share.

Publications and exports both use it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal, from_status, to_text
from hearth_proto.v1 import commands_pb2
from hearthd.device.backend.resources import SharedMemory
from hearthd.device.backend.server import DeviceFault
from hearthd.device.context import DeviceContext
from hearthd.device.memory.reservations import Reservations
from hearthd.device.memory.shared_ownership import NOTHING, MappedAllocation, SharedAllocation
from hearthd.device.operation import Origin, internal_error
from hearthd.device.platform.fd_passing import DescriptorSocket
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.session import BatchEntry, DeviceSession
from hearthd.device.streams.ordering import Usage
from hearthd.device.streams.stream_pool import PooledStream


class FrontReplies:
    """Reply sink for operations on behalf of the front: answers are sent to the front instead of the client."""

    def __init__(self, refuse: Callable[[int, Refusal], None]) -> None:
        self._refuse = refuse

    def result(self, session: DeviceSession, call: int, result: commands_pb2.Result) -> None:
        """Passes the refusal in `result` to `refuse`, with the number of the front's request."""
        self._refuse(call, from_status(result.error))

    def done(self, session: DeviceSession, call: int, request: int) -> None:
        """Has no effect: an operation that succeeds answers the front itself."""
        ...

    def acknowledge(self, session: DeviceSession, entry: BatchEntry) -> None:
        """Has no effect: the operation belongs to no batch."""
        ...

    def failed(self, origin: Origin, refusal: Refusal) -> None:
        """Has no effect: the operation is not counted among the failed commands of clients."""
        ...

    def waited(self, nanoseconds: int) -> None:
        """Has no effect: the operation is not counted among the commands of clients."""
        ...


class FrontLink:
    """Answers to the front, and memory that several processes map. Device-handle thread only."""

    def __init__(self, device: DeviceContext, reservations: Reservations) -> None:
        self.device = device
        self.reservations = reservations
        self.descriptors: DescriptorSocket
        """The socket that passes memory to the front; set by `Publishing.listen`."""

    # ---- requests and answers ----

    def origin(
        self, session: DeviceSession, name: str, call: int = 0, refuse: Callable[[int, Refusal], None] | None = None
    ) -> Origin:
        """Returns the origin of an operation on behalf of the front.

        A refusal answers the request `call`; `refuse` is called instead if it is given.
        """
        origin = Origin(FrontReplies(refuse or self.refuse), session, session.streams.items[0], name, call=call)
        origin.capture = None  # the operation is not part of a recording on the stream
        return origin

    def answer(self, call: int, body: dict[str, Any], kind: Kind = Kind.EXPORTED) -> None:
        """Answers the front's request `call`."""
        self.device.outbox.put(kind, json.dumps(body).encode(), id=call)

    def refuse(self, call: int, refusal: Refusal, kind: Kind = Kind.EXPORTED) -> None:
        """Answers the front's request `call` with an error; no effect if `call` is 0."""
        if call:
            self.answer(call, {"error": to_text(refusal)}, kind)

    def report(self, **news: list[int]) -> None:
        """Reports to the front what has ended in this process: attachments, publications, holders of memory."""
        self.answer(0, news, Kind.IMPORTED)

    @contextmanager
    def answering(self, call: int, name: str, kind: Kind) -> Iterator[None]:
        """Answers the front's request `call` with an error if the code inside raises one."""
        try:
            yield
        except DeviceFault:
            raise
        except Exception as error:
            self.refuse(call, error if isinstance(error, Refusal) else internal_error(name, error), kind)

    # ---- memory that several processes map ----

    def hand_over(self, kind: str, file: int, memory: SharedMemory) -> None:
        """Passes memory to the front, as the file with this number. Raises Refusal."""
        try:
            descriptor = self.device.server.export_shared(memory)
            try:
                self.descriptors.send(kind, {"file": file}, [descriptor])
            finally:
                os.close(descriptor)
        except OSError as error:
            raise Refusal(
                Reason.QUEUE_FULL,
                f"the memory could not be passed to another process: {error}",
                fix="try again",
                retry_after_s=0.1,
            ) from error

    def map(
        self, memory: SharedMemory, size: int, accounted_session: DeviceSession | None, *, lent: bool = False
    ) -> MappedAllocation:
        """Returns the allocation of `size` bytes in memory that other processes also map."""
        return MappedAllocation(self.reservations, memory, size, accounted_session, self._unmap, lent=lent)

    def copy(self, source: Buffer | SharedAllocation, allocation: MappedAllocation, track: PooledStream) -> None:
        """Submits the copy to memory that other processes map, on a track that waits for the users of the source.

        The remaining bytes, which may contain data of earlier users, are cleared.
        """
        server, tracks, size = self.device.server, self.device.tracks, allocation.size
        memory = allocation.memory
        tracks.claim_position(track, (allocation.usage,), (source.usage,))
        server.copy(allocation.address, source.address, size, track.stream)
        if memory.reserved > size:
            server.fill(allocation.address + size, b"\0", memory.reserved - size, track.stream)
        self.device.telemetry.device_to_device_bytes += size
        self.device.telemetry.device_to_device_operations += 1

    def after_uses(self, usage: Usage, callback: Callable[[], None]) -> None:
        """Calls `callback` when all work submitted so far with `usage` is done."""
        tracks = self.device.tracks
        tracks.after_all([tracks.all[index] for index in usage.tracks()], callback)

    def _unmap(self, allocation: MappedAllocation) -> None:
        def unmap() -> None:
            if allocation.memory is not NOTHING:
                self.device.server.release_shared(allocation.memory)
            if allocation.number:
                self.report(left=[allocation.number])
            self.device.kick(None)

        self.after_uses(allocation.usage, unmap)
