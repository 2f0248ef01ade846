"""Dispatch: from host inputs to host outputs in one command, with memory that nobody has to name.

It is one operation, which holds its place in its stream until all of it has been given to the device:

    prepare   the module is there; every check; the budget; all transient buffers, or none
    upload    outputs cleared, inline inputs copied, chunks of the others as they arrive
    launch    as often as asked for, back to back
    download  inline outputs copied, chunks of the others as the client takes them

Transient buffers are in no table. Each goes back to the pool, in the stream's order, behind its last use; whatever goes
wrong, all of them do, and so do the transfers. A failure is answered to the caller and leaves nothing on the stream.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from itertools import accumulate

from hearth_proto.launches import Record, pack, unpack_layout
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.arguments import pack_arguments
from hearthd.device.binding import Binder, BoundLaunch, Pointer, split
from hearthd.device.context import Device
from hearthd.device.copies import Copies
from hearthd.device.flows import Download, Upload
from hearthd.device.launch import dim
from hearthd.device.memory import MemoryCommands
from hearthd.device.operation import Operation, Origin
from hearthd.device.policy.budget import check_budget
from hearthd.device.policy.dispatch_plan import Failure, Transient, named_transfers, read_bindings, refuse
from hearthd.device.policy.launch_plan import plan_key
from hearthd.device.server import HostBuffer
from hearthd.device.stopwatch import Stopwatch
from hearthd.device.tables import Buffer, FunctionEntry, Session
from hearthd.device.tracks import WINDOW
from hearthd.device.transfers import Transfers

CLEAR = b"\0"


class DispatchCommands:
    """Belongs to the device-handle thread."""

    def __init__(
        self, device: Device, binder: Binder, memory: MemoryCommands, copies: Copies, transfers: Transfers
    ) -> None:
        self.device = device
        self.binder = binder
        self.memory = memory
        self.copies = copies
        self.transfers = transfers

    def dispatch(self, origin: Origin, command: commands_pb2.Dispatch) -> Operation:
        """Refuses at once what can be seen to be wrong without the kernel, all of it in one message."""
        try:
            return self._operation(origin, command)
        except Refusal as refusal:
            self._give_up(origin.session, named_transfers(command), refusal)
            raise

    def _operation(self, origin: Origin, command: commands_pb2.Dispatch) -> Operation:
        arrived_ns = time.perf_counter_ns()
        session = origin.session
        if not origin.answered:
            raise Refusal(Reason.INVALID_ARGUMENT, "a dispatch needs a request number", fix="set Command.request")
        plan, failures = read_bindings(command, self.device.spec.max_inline_bytes)
        entry = session.functions.get(command.function)
        slots = {what.binding: _Slot(what, Buffer(0, what.size)) for what in plan.transients}
        pointers: list[Pointer] = []
        for index, argument in enumerate(plan.arguments):
            try:
                if index in slots:
                    pointers.append(slots[index].buffer)
                elif command.bindings[index].role != commands_pb2.Binding.ROLE_VALUE:
                    pass  # without a buffer because of what is wrong with it
                elif argument.HasField("pointer"):
                    pointers.append(session.buffers.find(argument.pointer.buffer))
                elif argument.HasField("tensor_map"):
                    pointers.append(session.tensor_maps.find(argument.tensor_map))
            except Refusal as refusal:
                failures.append(Failure(refusal.reason, f"binding {index}: {refusal.message}"))
        if entry is None:
            unknown = session.functions.unknown(command.function)
            raise refuse("a kernel", [Failure(unknown.reason, unknown.message), *failures])
        origin.name = f"dispatch {entry.name}"
        if failures:
            raise refuse(entry.name, failures)
        layout, handles, params = pack_arguments(plan.arguments)
        record = Record(
            function=command.function,
            stream=origin.stream.handle,
            grid=dim(command.grid),
            block=dim(command.block),
            shared_mem=command.shared_mem,
            flags=0,
            timeout_ns=command.timeout_ns,
            layout=layout,
            buffers=handles,
            params=params,
        )
        run = _Run(self, origin, entry, record, pointers, list(slots.values()), plan.iterations, command.timed)
        run.arrived_ns = arrived_ns
        run.claim_transfers()
        written, read = split(pointers, [place.read_only for place in unpack_layout(layout) if place.pointer])
        operation = Operation(
            origin,
            run.step,
            writes=(origin.stream, *written),
            reads=(entry.module, *read),
            needs=(*written, *read),
        )
        operation.on_failure = run.let_go
        return operation

    def _give_up(self, session: Session, transfers: Sequence[int], refusal: Refusal) -> None:
        """Tells whoever is at the other ends that nothing comes of these; those of another command are left to it."""
        for number in transfers:
            flow = session.uploads.get(number) or session.downloads.get(number)
            if number not in session.over and (flow is None or not flow.claimed):
                self.transfers.give_up(session, number, refusal)


def _rounded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


class _Slot:
    """A transient buffer with what is known of it so far."""

    __slots__ = ("buffer", "download", "output", "upload", "what")

    def __init__(self, what: Transient, buffer: Buffer) -> None:
        self.what = what
        self.buffer = buffer
        self.upload: Upload | None = None
        self.download: Download | None = None
        self.output = b""


class _Run:
    """One dispatch under way. A stage that cannot go on answers False and is called again."""

    def __init__(
        self,
        commands: DispatchCommands,
        origin: Origin,
        entry: FunctionEntry,
        record: Record,
        pointers: list[Pointer],
        slots: list[_Slot],
        iterations: int,
        timed: bool,
    ) -> None:
        self._commands = commands
        self._device = device = commands.device
        self._origin = origin
        self._track = origin.stream.track
        self._entry = entry
        self._record = record
        self._key = plan_key(pack(record), record)
        self._pointers = pointers
        self._slots = slots
        self._timed = timed
        self._incoming = slots
        self._outgoing = [slot for slot in slots if slot.what.returns]
        self._bound: BoundLaunch | None = None
        self._left = iterations
        self._stages = [self._prepare, self._upload, self._launch, self._download]
        self._up, self._kernel, self._down = (
            Stopwatch(device.server, device.tracks, self._track, timed) for _ in range(3)
        )
        self.arrived_ns = 0
        self._handed_ns = 0

    def claim_transfers(self) -> None:
        """All transfers that it names are its own from now on, or none."""
        session, transfers = self._origin.session, self._commands.transfers
        try:
            for slot in self._slots:
                if slot.what.upload:
                    slot.upload = transfers.expect(session, slot.what.upload, "dispatch")
                if slot.what.download:
                    slot.download = transfers.promise(session, slot.what.download, "dispatch")
        except Refusal as refusal:
            self.let_go(refusal)
            raise

    def step(self) -> bool:
        while self._stages:
            if not self._stages[0]():
                return False
            del self._stages[0]
        return True

    def let_go(self, refusal: Refusal) -> None:
        """It will not go on: gives back all that it holds, and ends the transfers that are still open."""
        session = self._origin.session
        for slot in self._slots:
            self._release(slot)
            if slot.upload is not None and session.uploads.get(slot.what.upload) is slot.upload:
                self._commands.transfers.give_up(session, slot.what.upload, refusal)
            if slot.download is not None and session.downloads.get(slot.what.download) is slot.download:
                self._commands.transfers.give_up(session, slot.what.download, refusal)

    # ---- the stages ----

    def _prepare(self) -> bool:
        """Ends with memory behind every buffer, or raises with none."""
        if self._entry.module.pending or self._track.full:
            return False
        self._bind()  # every check, before there is any memory
        self._reserve()
        self._bound = self._bind()
        return True

    def _reserve(self) -> None:
        """One reservation for all buffers, so that they are had together or not at all."""
        device = self._device
        alignment = device.server.properties.memory_alignment
        places = list(accumulate((_rounded(slot.what.size, alignment) for slot in self._slots), initial=0))
        required = places.pop()
        check_budget(required, device.server.memory_info(), device.spec.memory_limit)
        buffers = [slot.buffer for slot in self._slots]
        take = self._commands.memory.reservations.take
        reservation = take(self._origin.session, required, self._track, buffers)
        for buffer, place in zip(buffers, places, strict=True):
            buffer.reservation = reservation
            buffer.address = reservation.memory.address + place

    def _bind(self) -> BoundLaunch:
        return self._commands.binder.bind(self._entry, self._record, self._pointers, self._key)

    def _upload(self) -> bool:
        try:
            self._incoming = [slot for slot in self._incoming if not self._bring(slot)]
        finally:
            self._up.stop()
        return not self._incoming

    def _bring(self, slot: _Slot) -> bool:
        """Gives the buffer what it begins with; whether that was all of it."""
        what = slot.what
        if slot.upload is not None:
            put = partial(self._put, slot)
            return self._commands.transfers.receive(self._origin, what.upload, slot.upload, what.size, put)
        if not what.size:
            return True
        if self._track.full:
            return False
        if what.brings:
            host = self._device.staging.acquire(what.size)
            if host is None:
                return False
            host.view[: what.size] = what.data
            self._put(slot, host, 0, what.size)
        else:
            self._up.start()
            self._device.begin(self._origin.stream)
            self._device.tracks.before(self._track, (slot.buffer.usage,))
            self._device.server.fill(slot.buffer.address, CLEAR, what.size, self._track.stream)
            self._device.telemetry.fills += 1
        return True

    def _put(self, slot: _Slot, host: HostBuffer, at: int, size: int) -> None:
        self._up.start()
        self._commands.copies.upload(self._origin, slot.buffer, slot.buffer.address + at, host, size)

    def _launch(self) -> bool:
        bound = self._bound
        assert bound is not None
        if self._track.full:
            return False
        if self._timed:  # waiting for other streams is no time of the kernel
            self._device.tracks.before(self._track, bound.writes, bound.reads)
        try:
            while self._left and not self._track.full:
                self._kernel.start()
                times = min(self._left, WINDOW)
                self._commands.binder.issue(self._origin.stream, bound, times)
                self._left -= times
        finally:
            self._kernel.stop()
        if self._left:
            return False
        for slot in self._slots:
            if not slot.what.returns:
                self._release(slot)
        return True

    def _download(self) -> bool:
        try:
            self._outgoing = [slot for slot in self._outgoing if not self._fetch(slot)]
        finally:
            self._down.stop()
        if self._outgoing:
            return False
        self._handed_ns = time.perf_counter_ns()
        self._device.tracks.on_complete(self._track, self._answer)
        return True

    def _fetch(self, slot: _Slot) -> bool:
        """Gives the output's way to the host to the device; whether that was all of it."""
        what = slot.what
        if slot.download is not None:
            take = partial(self._take, slot)
            if not self._commands.transfers.send(self._origin, what.download, slot.download, what.length, take):
                return False
        elif what.length:
            host = None if self._track.full else self._device.staging.acquire(what.length)
            if host is None:
                return False
            self._take(slot, host, 0, what.length)
            self._device.tracks.on_complete(self._track, partial(self._keep, slot, host))
        self._release(slot)
        return True

    def _take(self, slot: _Slot, host: HostBuffer, at: int, size: int) -> None:
        self._down.start()
        address = slot.buffer.address + slot.what.offset + at
        self._commands.copies.download(self._origin, slot.buffer, address, host, size)

    def _keep(self, slot: _Slot, host: HostBuffer) -> None:
        slot.output = bytes(host.view[: slot.what.length])
        self._device.staging.release(host)

    # ---- the end ----

    def _release(self, slot: _Slot) -> None:
        self._commands.memory.release(self._origin.session, slot.buffer)

    def _answer(self) -> None:
        outputs = [slot for slot in self._slots if slot.what.returns]
        now = time.perf_counter_ns()
        result = commands_pb2.DispatchResult(
            outputs=[slot.output for slot in outputs],
            sizes=[slot.what.length for slot in outputs],
            wall_ns=now - self.arrived_ns,
            enqueue_ns=self._handed_ns - self.arrived_ns,
            wait_ns=now - self._handed_ns,
        )
        if self._timed:
            result.upload_ns = self._up.elapsed_ns
            result.kernel_ns = self._kernel.elapsed_ns
            result.download_ns = self._down.elapsed_ns
        self._origin.reply(commands_pb2.Result(dispatch=result))
