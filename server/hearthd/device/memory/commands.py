"""Memory commands: allocation and free of a session's device memory, its allocation modes and its usage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.context import DeviceContext
from hearthd.device.memory.deferred_allocation import DEFERRED_ALLOCATION, DeferredAllocation, may_wait
from hearthd.device.memory.deferred_free import FreeQueue
from hearthd.device.memory.reservations import Reservation, Reservations, free_track
from hearthd.device.operation import Operation, Origin
from hearthd.device.resources.budget import ceiling
from hearthd.device.session.buffer import Buffer, Reach
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.stream_pool import PooledStream


class MemoryCommands:
    """Executes the memory commands. Device-handle thread only."""

    def __init__(self, device: DeviceContext) -> None:
        self._device = device
        self.reservations = Reservations(device)
        self.deferred_free = self.reservations.deferred_free

    def allocate(self, origin: Origin, command: commands_pb2.Allocate) -> Operation | None:
        """Allocates immediately, even if the stream has waiting commands: no earlier command can refer to the buffers.

        An allocation that does not fit yet waits for memory that is being freed.
        """
        session = origin.session
        buffers = _named(session, command)
        for buffer in buffers:
            session.buffers.items[buffer.handle] = buffer
        reserve = partial(self._reserve, session, origin.stream.track, buffers)

        def lost(refusal: Refusal) -> None:
            self._device.telemetry.out_of_memory += 1
            for buffer in buffers:
                buffer.lost = refusal

        if not session.late_allocations:  # otherwise it would take memory that an earlier allocation waits for
            try:
                reserve()
            except Refusal as refusal:
                if not may_wait(refusal):
                    lost(refusal)
                    # Later commands on the buffers are skipped, and not reported separately.
                    origin.fail(refusal, buffers)
                    return None
            else:
                origin.reply()
                return None

        def allocated() -> None:
            session.late_allocations -= 1
            origin.reply()

        def abandoned(refusal: Refusal) -> None:
            session.late_allocations -= 1
            lost(refusal)

        session.late_allocations += 1
        late = DeferredAllocation(self._device, self.reservations, session, reserve)
        operation = Operation(origin, late.run, writes=(origin.stream, DEFERRED_ALLOCATION, *buffers), spoils=buffers)
        operation.after = allocated
        operation.on_failure = abandoned
        return operation

    def _reserve(self, session: DeviceSession, track: PooledStream, buffers: Sequence[Buffer]) -> None:
        """Takes one reservation for all buffers, and places each at the next multiple of the device's alignment."""
        alignment = self._device.server.properties.memory_alignment
        spaced = (-(-buffer.size // alignment) * alignment for buffer in buffers[:-1])
        offsets = list(accumulate(spaced, initial=0))
        reservation = self.reservations.allocate(session, offsets[-1] + buffers[-1].size, track, buffers)
        for buffer, offset in zip(buffers, offsets, strict=True):
            buffer.reservation = reservation
            buffer.address = reservation.memory.address + offset

    def free(self, origin: Origin, command: commands_pb2.Free) -> Operation | None:
        """Destroys the handles now, and frees the memory when the work that uses it is done.

        Large numbers of buffers are freed in pieces.
        """
        session = origin.session
        buffers, unknown = session.buffers.pop_all(command.buffers)
        # Among later commands, only graphs and prepared launches that hold a buffer can still use it, without its
        # handle.
        deferred = session.deferred
        held_buffers = tuple(buffer for buffer in buffers if deferred.holds(buffer)) if deferred.waiting else ()
        free_queue: FreeQueue[Buffer] | None = None
        session.last_free = number = session.last_free + 1
        session.frees[number] = None

        def run() -> bool:
            nonlocal free_queue
            if free_queue is None:
                free_queue = self._clear(session, buffers)
                # Tries this free again, and an allocation that may wait for it.
                free_queue.then(lambda: self._device.kick(session))
            if not free_queue.over:
                return False
            del session.frees[number]
            refusal = free_queue.failure or unknown
            if refusal is not None:
                raise refusal
            origin.reply()
            return True

        operation = Operation(origin, run, writes=held_buffers)

        def abandoned(_: Refusal) -> None:
            # The session closes before the command runs. The buffers are no longer in a table, so `close` does not find
            # them.
            session.frees.pop(number, None)
            if free_queue is None:
                self._clear(session, buffers)

        operation.on_failure = abandoned
        return operation

    def _clear(self, session: DeviceSession, buffers: list[Buffer]) -> FreeQueue[Buffer]:
        """Starts to free the buffers, and empties the list."""
        free_queue = self.deferred_free.begin(
            session, buffers, partial(_free_track, session), partial(self.release, session)
        )
        buffers.clear()
        return free_queue

    def release(self, session: DeviceSession, buffer: Buffer) -> None:
        """Releases a buffer whose handle is destroyed.

        The memory is freed after its last use, once no holder is left.
        """
        buffer.freed = True
        if buffer.durable is not None:
            buffer.durable.end()
        if buffer.reaches:
            self.release_reached(session, buffer)
        if not buffer.holders:
            self._give_back(session, buffer)

    def hold(self, buffer: Buffer) -> None:
        """Keeps the memory until `unhold`, even after the handle is freed.

        Used by graphs, prepared launches, tensor maps and arrays of pointers.
        """
        buffer.holders += 1

    def unhold(self, session: DeviceSession, buffer: Buffer) -> None:
        """Ends one `hold`. `session` is the session that owns the buffer."""
        buffer.holders -= 1
        if buffer.freed and not buffer.holders:
            self._give_back(session, buffer)

    def hold_reached(self, session: DeviceSession, buffer: Buffer, reached: Sequence[Reach]) -> None:
        """Makes `buffer` an array of pointers to the buffers `reached`, whose memory is kept until `release_reached`.

        The array itself is held as well, so that each free of it is an operation.
        """
        if reached:
            buffer.reaches = tuple(reached)
            session.reached += len(reached)
            for held in (buffer, *(reach.buffer for reach in reached)):
                self.hold(held)

    def release_reached(self, session: DeviceSession, buffer: Buffer) -> None:
        """Ends `hold_reached`. A second call has no effect. `session` is the session that owns the buffers."""
        reached, buffer.reaches = buffer.reaches, ()
        if reached:
            session.reached -= len(reached)
            buffer.holders -= 1
            for reach in reached:
                self.unhold(session, reach.buffer)

    def _give_back(self, session: DeviceSession, buffer: Buffer) -> None:
        if buffer.place is not None:
            buffer.place.leave(buffer)
            return
        reservation, buffer.reservation = buffer.reservation, None
        if reservation is not None:
            self.reservations.free(session, reservation, buffer)

    def close(self, session: DeviceSession) -> None:
        """Frees all memory of the session after its work under way, in pieces.

        `deferred_free` reports when that is done. Held memory is freed when its holders release it.
        """
        self.reservations.close(session)
        buffers = session.buffers.items
        for buffer in [shared for shared in buffers.values() if shared.place is not None or shared.durable is not None]:
            self.release(session, buffers.pop(buffer.handle))  # shared or durable: the other holders are notified now
        self._clear(session, list(buffers.values()))
        buffers.clear()

    # ---- allocation modes and usage ----

    def set_allocation_mode(self, origin: Origin, command: commands_pb2.SetAllocationMode) -> None:
        """Sets the mode immediately, like an allocation.

        Raises Refusal(INVALID_ARGUMENT) for an unknown mode, or if AUTO closes a window that is not open.
        """
        persistent = origin.session.persistent
        if command.mode == commands_pb2.ALLOCATION_MODE_PERSISTENT:
            persistent.enter()
        elif command.mode == commands_pb2.ALLOCATION_MODE_AUTO:
            persistent.leave()
        else:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"{command.mode} is not an allocation mode",
                fix="ALLOCATION_MODE_PERSISTENT opens a window, ALLOCATION_MODE_AUTO closes one",
                details={"mode": command.mode},
                fields=["mode"],
            )
        origin.reply()

    def memory_usage(self, origin: Origin, _command: commands_pb2.MemoryUsage) -> Operation | None:
        """Answers with the memory usage of the session and the device.

        The answer waits until all memory that the session is freeing has been accounted for.
        """
        return self._cleared(origin, self._usage)

    def memory_cleanup(self, origin: Origin, _command: commands_pb2.MemoryCleanup) -> Operation | None:
        """Frees the unused memory that the session keeps, then returns the pool's unused memory to the device.

        The command is answered after that.
        """
        self.reservations.clear(origin.session)
        return self._cleared(origin, self._trim)

    def _cleared(self, origin: Origin, answer: Callable[[Origin], None]) -> Operation | None:
        """Answers as soon as all memory that the session is freeing has been accounted for."""
        free_queue = self.deferred_free.latest(origin.session)
        if free_queue is None:
            answer(origin)
            return None
        free_queue.then(lambda: self._device.kick(origin.session))

        def run() -> bool:
            if free_queue.over:
                answer(origin)
            return free_queue.over

        return Operation(origin, run)

    def _usage(self, origin: Origin) -> None:
        session = origin.session
        info = self._device.server.memory_info()
        maximum = ceiling(info, self._device.spec.memory_limit)
        usage = commands_pb2.MemoryUsageResult(
            allocations=session.allocations,
            bytes_in_use=session.bytes_in_use,
            bytes_padding=session.bytes_reserved - session.bytes_in_use,
            bytes_reserved=info.reserved,
            device_free=info.free,
            device_total=min(maximum, session.device_bytes or maximum),
            bytes_pinned=self._device.server.host_info().pinned,
            bytes_pinned_in_use=session.bytes_pinned,
            bytes_persistent=session.persistent.bytes,
            bytes_peak=session.bytes_peak,
            bytes_durable=session.bytes_durable,
        )
        origin.reply(commands_pb2.Result(memory_usage=usage))

    def _trim(self, origin: Origin) -> None:
        self._device.server.trim()
        origin.reply()


def _free_track(session: DeviceSession, buffer: Buffer) -> PooledStream | None:
    reservation: Reservation | None = buffer.reservation
    return free_track(session, reservation) if reservation is not None else None


def _named(session: DeviceSession, command: commands_pb2.Allocate) -> list[Buffer]:
    """Returns the buffers that an allocation creates, at least one. Raises Refusal without effect on the session."""
    if not command.parts:
        session.buffers.check_new(command.buffer)
        return [Buffer(command.buffer, command.size)]
    if command.buffer or command.size:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"an allocation of buffer {command.buffer} with {command.size} bytes and of {len(command.parts)} parts",
            fix="name either one buffer and its size, or parts",
            details={"buffer": command.buffer, "size": command.size, "parts": len(command.parts)},
            fields=["buffer", "size", "parts"],
        )
    buffers: dict[int, Buffer] = {}
    session.buffers.check_room(len(command.parts))
    for part in command.parts:
        session.buffers.check_new(part.buffer)
        if part.buffer in buffers:
            raise Refusal(
                Reason.HANDLE_IN_USE,
                f"two parts of an allocation are buffer {part.buffer}",
                fix="mint a handle for each part",
                details={"buffer": part.buffer},
            )
        buffers[part.buffer] = Buffer(part.buffer, part.size)
    return list(buffers.values())
