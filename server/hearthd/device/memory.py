"""Allocate and free: what a session holds of the device's memory, and what it is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.buffer import Buffer
from hearthd.device.context import Device
from hearthd.device.late_allocation import LATE, LateAllocation, may_wait
from hearthd.device.operation import Operation, Origin
from hearthd.device.policy.budget import ceiling
from hearthd.device.reservations import Reservations
from hearthd.device.session import Session
from hearthd.device.tracks import Track


class MemoryCommands:
    """Belongs to the device-handle thread."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.reservations = Reservations(device)

    def allocate(self, origin: Origin, command: commands_pb2.Allocate) -> Operation | None:
        """At once, also while the stream waits: nothing can refer to the buffers before. What does not fit yet, waits
        for the memory that is on its way back."""
        session = origin.session
        buffers = _named(session, command)
        for buffer in buffers:
            session.buffers.items[buffer.handle] = buffer
        reserve = partial(self._reserve, session, origin.stream.track, buffers)

        def lost(refusal: Refusal) -> None:
            self._device.telemetry.out_of_memory += 1
            for buffer in buffers:
                buffer.lost = refusal

        if not session.late_allocations:  # else it would take what an earlier one waits for
            try:
                reserve()
            except Refusal as refusal:
                if not may_wait(refusal):
                    lost(refusal)
                    origin.fail(refusal, buffers)  # what is done to them next is skipped, and not reported beside it
                    return None
            else:
                origin.reply()
                return None

        def had() -> None:
            session.late_allocations -= 1
            origin.reply()

        def given_up(refusal: Refusal) -> None:
            session.late_allocations -= 1
            lost(refusal)

        session.late_allocations += 1
        late = LateAllocation(self._device, self.reservations, session, reserve)
        operation = Operation(origin, late.run, writes=(origin.stream, LATE, *buffers), spoils=buffers)
        operation.after = had
        operation.on_failure = given_up
        return operation

    def _reserve(self, session: Session, track: Track, buffers: Sequence[Buffer]) -> None:
        """One reservation for all: each buffer at the next multiple of the device's alignment."""
        alignment = self._device.server.properties.memory_alignment
        spaced = (-(-buffer.size // alignment) * alignment for buffer in buffers[:-1])
        places = list(accumulate(spaced, initial=0))
        reservation = self.reservations.take(session, places[-1] + buffers[-1].size, track, buffers)
        for buffer, place in zip(buffers, places, strict=True):
            buffer.reservation = reservation
            buffer.address = reservation.memory.address + place

    def free(self, origin: Origin, command: commands_pb2.Free) -> Operation | None:
        """The handles die now, the memory when the work that uses it is done."""
        session = origin.session
        buffers: list[Buffer] = []
        unknown: Refusal | None = None
        for handle in command.buffers:
            try:
                buffers.append(session.buffers.pop(handle))
            except Refusal as refusal:
                unknown = refusal

        session.last_free = number = session.last_free + 1
        session.frees[number] = None

        def run() -> bool:
            del session.frees[number]
            for buffer in buffers:
                self.release(session, buffer)
            self._device.kick(session)  # an allocation may wait for it
            if unknown is not None:
                raise unknown
            origin.reply()
            return True

        operation = Operation(origin, run, writes=tuple(buffers))

        def release_all(_: Refusal) -> None:
            # The session is being closed before its turn: the buffers are in no table any more, so nobody else would.
            session.frees.pop(number, None)
            for buffer in buffers:
                self.release(session, buffer)

        operation.on_failure = release_all
        return operation

    def release(self, session: Session, buffer: Buffer) -> None:
        """The handle is gone: gives the memory back, behind every use of it, once nobody holds it any more."""
        buffer.freed = True
        if buffer.durable is not None:
            buffer.durable.end()
        if not buffer.holders:
            self._give_back(session, buffer)

    def hold(self, buffer: Buffer) -> None:
        """Keeps the memory until `let_go`, also when the handle is freed: for graphs and prepared launches."""
        buffer.holders += 1

    def let_go(self, session: Session, buffer: Buffer) -> None:
        """The end of one `hold`; `session` is the buffer's."""
        buffer.holders -= 1
        if buffer.freed and not buffer.holders:
            self._give_back(session, buffer)

    def _give_back(self, session: Session, buffer: Buffer) -> None:
        if buffer.place is not None:
            buffer.place.leave(buffer)
            return
        reservation, buffer.reservation = buffer.reservation, None
        if reservation is not None:
            self.reservations.give(session, reservation, buffer)

    def close(self, session: Session) -> None:
        """Frees all that the session has, behind its work under way. What is held goes when its holders let go."""
        for buffer in session.buffers.items.values():
            self.release(session, buffer)
        self.reservations.close(session)

    # ---- how memory is kept ----

    def set_allocation_mode(self, origin: Origin, command: commands_pb2.SetAllocationMode) -> None:
        """At once, as allocations are. Raises Refusal(INVALID_ARGUMENT) for a mode that is none, or closes nothing."""
        persistent = origin.session.persistent
        if command.mode == commands_pb2.ALLOCATION_MODE_PERSISTENT:
            persistent.enter()
        elif command.mode == commands_pb2.ALLOCATION_MODE_AUTO:
            persistent.leave()
        else:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"{command.mode} is no allocation mode",
                fix="ALLOCATION_MODE_PERSISTENT opens a window, ALLOCATION_MODE_AUTO closes one",
                details={"mode": command.mode},
            )
        origin.reply()

    def memory_usage(self, origin: Origin, _command: commands_pb2.MemoryUsage) -> None:
        session = origin.session
        info = self._device.server.memory_info()
        most = ceiling(info, self._device.spec.memory_limit)
        usage = commands_pb2.MemoryUsageResult(
            allocations=session.allocations,
            bytes_in_use=session.bytes_in_use,
            bytes_padding=session.bytes_reserved - session.bytes_in_use,
            bytes_reserved=info.reserved,
            device_free=info.free,
            device_total=min(most, session.device_bytes or most),
            bytes_pinned=self._device.server.host_info().pinned,
            bytes_pinned_in_use=session.bytes_pinned,
            bytes_persistent=session.persistent.bytes,
            bytes_peak=session.bytes_peak,
            bytes_durable=session.bytes_durable,
        )
        origin.reply(commands_pb2.Result(memory_usage=usage))

    def memory_cleanup(self, origin: Origin, _command: commands_pb2.MemoryCleanup) -> None:
        self.reservations.cleanup(origin.session)
        origin.reply()


def _named(session: Session, command: commands_pb2.Allocate) -> list[Buffer]:
    """The buffers that an allocation names, at least one. Raises Refusal and leaves nothing behind."""
    if not command.parts:
        session.buffers.check_new(command.buffer)
        return [Buffer(command.buffer, command.size)]
    if command.buffer or command.size:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"an allocation of buffer {command.buffer} with {command.size} bytes and of {len(command.parts)} parts",
            fix="name either one buffer and its size, or parts",
            details={"buffer": command.buffer, "size": command.size, "parts": len(command.parts)},
        )
    buffers: dict[int, Buffer] = {}
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
