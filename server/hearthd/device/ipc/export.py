"""Export of published buffers to other processes: the copy that these can map, and its hand-over to the front."""

from __future__ import annotations

from functools import partial

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.server import DeviceFault
from hearthd.device.ipc.front_link import FrontLink
from hearthd.device.ipc.published import PublishedBuffer
from hearthd.device.memory.shared_ownership import MappedAllocation, SharedAllocation
from hearthd.device.operation import Operation, internal_error, submit
from hearthd.device.resources.grants import MemoryRequest
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.stream_pool import PooledStream

FILE = "published"
"""Kind of the messages that carry memory to and from the front."""


class _Copy:
    """Holder of the copy until the publication holds it."""


class Exporting:
    """Exports published buffers. Device-handle thread only."""

    def __init__(self, link: FrontLink) -> None:
        self._link = link
        self._device = link.device
        self._track: PooledStream | None = None

    def export(self, call: int, shared: PublishedBuffer | None, file: int) -> None:
        """Sends the buffer's memory to the front as soon as the memory can be mapped by other processes.

        Raises Refusal(NOT_PUBLISHED) if the publication has ended.
        """
        if shared is None or shared.publisher is None:
            raise _ended_refusal()
        if not shared.allocation.size:
            raise Refusal(Reason.INVALID_ARGUMENT, "it has no bytes, and so no memory")
        if shared.allocation.shared is not None:
            self._hand_over(shared, call, file)
        else:
            shared.waiting.append((call, file))
            if len(shared.waiting) == 1:
                memory_request = MemoryRequest(self._device.grants, lambda: self._begin(shared, memory_request))
                self._begin(shared, memory_request)

    def _begin(self, shared: PublishedBuffer, memory_request: MemoryRequest) -> None:
        """Copies the buffer as soon as there is room for the copy; the front may have to grant memory first."""
        if shared.publisher is None:
            self._refuse_waiting(shared, _ended_refusal())
            return
        try:
            self._device.grants.make_room(shared.allocation.size)
            self._copy(shared, shared.publisher)
        except Refusal as refusal:
            if not memory_request.waits(refusal):
                self._refuse_waiting(shared, refusal)
        except DeviceFault:
            raise
        except Exception as error:
            self._refuse_waiting(shared, internal_error("export", error))

    def _refuse_waiting(self, shared: PublishedBuffer, refusal: Refusal) -> None:
        waiting, shared.waiting = shared.waiting, []
        for call, _ in waiting:
            self._link.refuse(call, refusal)

    def _copy(self, shared: PublishedBuffer, session: DeviceSession) -> None:
        """Copies the buffer into memory that other processes can map."""
        tracks, old = self._device.tracks, shared.allocation
        memory = self._device.server.create_shared(old.size)
        allocation = self._link.map(memory, old.size, session)
        allocation.number, allocation.on_leave = old.number, old.on_leave
        copy = _Copy()
        allocation.join(copy, session)
        if self._track is None:
            self._track = tracks.acquire()
        try:
            self._link.copy(old, allocation, self._track)
        except Refusal:
            allocation.leave(copy)
            raise
        tracks.on_complete(self._track, partial(self._copied, shared, allocation, copy))

    def _copied(self, shared: PublishedBuffer, allocation: MappedAllocation, copy: _Copy) -> None:
        old = shared.allocation
        if shared.publisher is None:
            self._refuse_waiting(shared, _ended_refusal())
            allocation.leave(copy)
            return
        waiting, shared.waiting = shared.waiting, []
        shared.allocation = allocation
        old.move(shared, allocation)
        allocation.leave(copy)
        for holder, session in list(old.holders.items()):
            if isinstance(holder, Buffer):
                origin = self._link.origin(session, "publish")
                submit(Operation(origin, partial(self._follow, session, holder, allocation), writes=(holder,)))
        for call, file in waiting:
            try:
                self._hand_over(shared, call, file)
            except Refusal as refusal:
                self._link.refuse(call, refusal)

    def _follow(self, session: DeviceSession, buffer: Buffer, allocation: MappedAllocation) -> bool:
        """Moves a buffer to the copy, after its work under way.

        A buffer that a graph holds is not moved, because the graph contains its address.
        """
        old: SharedAllocation = buffer.place
        if allocation.holders and buffer in old.holders and not buffer.holders and old is not allocation:
            allocation.assign(buffer)
            session.replay_cache.forget()
            old.move(buffer, allocation)
        return True

    def _hand_over(self, shared: PublishedBuffer, call: int, file: int) -> None:
        memory = shared.allocation.shared
        assert memory is not None, "it is exported once other processes can map it"
        self._link.hand_over(FILE, file, memory)
        self._link.answer(call, {"size": shared.allocation.size})


def _ended_refusal() -> Refusal:
    return Refusal(Reason.NOT_PUBLISHED, "it is no longer published", fix="have it published again")
