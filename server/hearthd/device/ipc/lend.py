"""Buffers that are exported to other processes of this host (ExportIpc): their memory as a file that can be mapped.

A buffer's memory is part of the pool, next to other buffers, but a process maps an allocation as a whole. Therefore an
exported buffer is moved, the first time, to a separate allocation whose remaining bytes are cleared. The allocation
never contains data of other sessions or of other buffers of the same session, and is freed to the driver instead of the
pool. The session is responsible for writes by other processes.

The memory is kept as long as the buffer, any of its exports, or a process that maps it exists. The driver tracks the
mappings: physical memory is freed with its last mapping, so that processes on either side may be killed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.ipc.front_link import FrontLink
from hearthd.device.memory.shared_ownership import MappedAllocation, SharedAllocation, is_lent, shared_place
from hearthd.device.operation import Operation, submit
from hearthd.device.resources.grants import MemoryRequest
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.stream_pool import PooledStream

FILE = "lent"
"""Kind of the messages that carry memory to the front."""

MAX_EXPORTS = 4096
"""Most exports of one session. Each export takes an address range in the process that maps it, and in this one."""

Key = tuple[int, int]
"""Channel, and the number of the export that the client chose."""


@dataclass(eq=False, slots=True)
class LentBuffer:
    """An export of a buffer, which is one holder of the buffer's memory."""

    session: DeviceSession
    buffer: Buffer
    key: Key
    call: int
    """Number of the front's request."""
    file: int
    """Number under which the front expects the memory."""
    allocation: MappedAllocation | None = None
    """The allocation that the export holds; None until the export has run."""


class Lending:
    """All exports of the process. Device-handle thread only."""

    def __init__(self, link: FrontLink) -> None:
        self._link = link
        self._device = link.device
        self._lent: dict[Key, LentBuffer] = {}

    def __len__(self) -> int:
        """Returns the number of exports."""
        return len(self._lent)

    def lend(self, call: int, session: DeviceSession, handle: int, number: int, file: int) -> None:
        """Sends the buffer's memory to the front as soon as all earlier work on the buffer is done. Raises Refusal."""
        self._check_number(session, number)
        buffer = session.buffers.find(handle)
        if not buffer.size and buffer.lost is None:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"buffer {handle} has no bytes, and so no memory to export",
                fix="export one that has",
                details={"buffer": handle},
            )
        key = session.channel, number
        lent = self._lent[key] = LentBuffer(session, buffer, key, call, file)
        origin = self._link.origin(session, "export", call, lambda _, refusal: self._failed(lent, refusal))
        memory_request = MemoryRequest(self._device.grants, lambda: self._device.kick(session))
        submit(Operation(origin, partial(self._run, lent, memory_request), writes=(buffer,), needs=(buffer,)))

    def release(self, channel: int, number: int) -> None:
        """Ends an export; no effect if it does not exist."""
        self._end(self._lent.pop((channel, number), None))

    def close(self, session: DeviceSession) -> None:
        """Ends all exports of a closed session."""
        for key in [key for key, lent in self._lent.items() if lent.session is session]:
            self.release(*key)

    # ---- one export ----

    def _check_number(self, session: DeviceSession, number: int) -> None:
        if not number:
            raise Refusal(Reason.INVALID_ARGUMENT, "0 cannot be the number of an export", fix="count from 1")
        if (session.channel, number) in self._lent:
            raise Refusal(
                Reason.HANDLE_IN_USE,
                f"export {number} exists already in this session on this device",
                fix="take a number that was not used before",
                details={"kind": "export", "handle": number},
            )
        if sum(channel == session.channel for channel, _ in self._lent) >= MAX_EXPORTS:
            raise Refusal(
                Reason.QUOTA_EXCEEDED,
                f"the session has {MAX_EXPORTS} exports on this device already",
                fix="close some that are no longer needed",
                details={"exports": MAX_EXPORTS, "allowed": MAX_EXPORTS},
            )

    def _run(self, lent: LentBuffer, memory_request: MemoryRequest) -> bool:
        """Runs an export, after all earlier commands of the buffer. Returns False if it must wait."""
        buffer = lent.buffer
        if self._lent.get(lent.key) is not lent:
            raise _released()
        if self._device.tracks.pending_outcomes.of_buffer(buffer.usage):
            return False  # the buffer's contents may prove invalid when the outcome of a collective is known
        check_exportable(buffer)
        if not is_lent(buffer):
            try:
                self._move(buffer, lent.session)
            except Refusal as refusal:
                if memory_request.waits(refusal):
                    return False
                raise
        allocation: MappedAllocation = buffer.place
        allocation.join(lent, lent.session)
        lent.allocation = allocation
        self._link.after_uses(allocation.usage, partial(self._hand_over, lent))
        return True

    def _move(self, buffer: Buffer, session: DeviceSession) -> None:
        """Moves a buffer to a separate allocation, after its work under way; later commands use the new memory."""
        link, tracks, size = self._link, self._device.tracks, buffer.size
        link.reservations.check_quota(session, size)
        self._device.grants.make_room(size)
        memory = self._device.server.create_shared(size, writable=True)
        allocation = link.map(memory, size, session, lent=True)
        allocation.join(buffer, session)
        track = tracks.acquire()  # a separate track for each move, so that other moves need not wait
        try:
            link.copy(buffer, allocation, track)
        except Refusal:
            allocation.leave(buffer)
            tracks.release(track)
            raise
        old = shared_place(link.reservations, session, buffer)
        allocation.assign(buffer)
        session.replay_cache.forget()  # forgets launches with the old address
        # The old memory is freed only now, because the stream on which it was allocated would wait for all its users.
        tracks.on_complete(track, partial(self._moved, track, old, buffer))

    def _moved(self, track: PooledStream, old: SharedAllocation, buffer: Buffer) -> None:
        self._device.tracks.release(track)
        old.leave(buffer)

    def _hand_over(self, lent: LentBuffer) -> None:
        if self._lent.get(lent.key) is not lent or lent.allocation is None:
            self._link.refuse(lent.call, _released())
            return
        memory = lent.allocation.memory
        try:
            self._link.hand_over(FILE, lent.file, memory)
        except Refusal as refusal:
            self._failed(lent, refusal)
            return
        self._link.answer(lent.call, {"size": lent.buffer.size, "allocation": memory.reserved})

    def _failed(self, lent: LentBuffer, refusal: Refusal) -> None:
        if self._lent.get(lent.key) is lent:
            del self._lent[lent.key]
            self._end(lent)
        self._link.refuse(lent.call, refusal)

    @staticmethod
    def _end(lent: LentBuffer | None) -> None:
        if lent is not None and lent.allocation is not None:
            allocation, lent.allocation = lent.allocation, None
            allocation.leave(lent)


def check_exportable(buffer: Buffer) -> None:
    """Raises Refusal if the buffer cannot be exported, or not at present."""
    buffer.range(0, 0, "export")
    if buffer.read_only is not None:
        problem, fix = buffer.read_only.why, "export a copy: a process that maps memory can write to it"
    elif buffer.module is not None:
        problem, fix = "is a variable of a module", "copy it to an array, and export that"
    elif buffer.holders and not is_lent(buffer):
        users = "graphs, prepared lists, tensor maps or arrays of pointers"
        problem = f"is used by {buffer.holders} {users}, which hold its address"
        fix = "export it before they are made, or destroy them first"
    else:
        return
    raise Refusal(
        Reason.INVALID_ARGUMENT,
        f"buffer {buffer.handle} cannot be exported: it {problem}",
        fix=fix,
        details={"buffer": buffer.handle, "holders": buffer.holders},
    )


def _released() -> Refusal:
    return Refusal(Reason.CANCELLED, "the export was released before it was complete", fix="export it again")
