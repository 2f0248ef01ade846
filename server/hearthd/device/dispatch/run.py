"""Execution of a dispatch, with its transient memory.

A dispatch is one operation, which keeps its position in its stream until all of it has been submitted to the device:

  prepare   waits for the module, makes every check, allocates all transient buffers or none
  upload    clears outputs, copies inline inputs, copies chunks of other inputs as they arrive
  launch    launches the kernel as often as requested, back to back; in validate mode, waits for the result
  download  copies inline outputs, copies chunks of other outputs as the client receives them

Transient buffers are in no table. They are freed in the order of the stream, after their last use. An error also frees
them, and ends the transfers. A failure is answered to the caller and leaves no error on the stream.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from hearth_proto.launches import LaunchFlag
from hearth_proto.layouts import RowLayout
from hearth_proto.reasons import Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.context import DeviceContext
from hearthd.device.dispatch.plan import TransientBuffer
from hearthd.device.flows.transfer import DownloadFlow, UploadFlow
from hearthd.device.graphs.repeat import MAX_PER_ITERATION
from hearthd.device.launch.binder import Binder, BoundLaunch, ResolvedRecord
from hearthd.device.launch.idle_load import LaunchMemoryWait
from hearthd.device.launch.memory_checker import Validation
from hearthd.device.memory.commands import MemoryCommands
from hearthd.device.memory.deferred_allocation import DeferredAllocation
from hearthd.device.memory.reservations import Reservation
from hearthd.device.operation import Origin
from hearthd.device.profiling.stopwatch import Stopwatch
from hearthd.device.resources.budget import check_budget
from hearthd.device.resources.grants import MemoryRequest
from hearthd.device.session.buffer import Buffer
from hearthd.device.streams.pending_outcomes import PendingOutcome, both
from hearthd.device.streams.stream_pool import WINDOW
from hearthd.device.transfers.buffer_copy import BufferCopy
from hearthd.device.transfers.state import claim
from hearthd.device.transfers.transfers import Transfers

CLEAR = b"\0"

CHECK_FROM = 16 << 20
"""Smallest size, in bytes, for which the free memory of the device is checked before an allocation. For smaller sizes
the check costs more than it can save, as the pool refuses a reservation as a whole."""


class TransientSlot:
    """A transient buffer: its binding, its memory, and the copies of its bytes."""

    __slots__ = ("buffer", "data", "download", "input_copy", "output", "output_copy", "transient", "upload")

    def __init__(self, device: DeviceContext, origin: Origin, transient: TransientBuffer, data: bytes) -> None:
        self.transient = transient
        self.data = data
        """The input, if it was sent inside the message; otherwise empty."""
        self.buffer = Buffer(0, transient.size)
        self.upload: UploadFlow | None = None
        self.download: DownloadFlow | None = None
        self.output = b""
        self.input_copy = BufferCopy(device, origin, self.buffer, RowLayout(0, transient.size))
        self.output_copy = BufferCopy(device, origin, self.buffer, RowLayout(transient.offset, transient.length))

    def assign(self, reservation: Reservation, offset: int) -> None:
        """Assigns the buffer its reservation and its address."""
        self.buffer.reservation = reservation
        self.buffer.address = self.input_copy.address = reservation.memory.address + offset
        self.output_copy.address = self.buffer.address + self.transient.offset


class DispatchResources(NamedTuple):
    """Services that a dispatch uses."""

    device: DeviceContext
    binder: Binder
    memory: MemoryCommands
    transfers: Transfers


class DispatchRun:
    """A dispatch under way. A stage that cannot continue returns False and is called again later."""

    def __init__(
        self,
        resources: DispatchResources,
        origin: Origin,
        resolved: ResolvedRecord,
        slots: list[TransientSlot],
        iterations: int,
        timed: bool,
    ) -> None:
        self._resources = resources
        self._device = device = resources.device
        self._origin = origin
        self._track = origin.stream.track
        self._resolved = resolved
        self._entry = resolved.entry
        self._slots = slots
        self._timed = timed
        self._incoming = slots
        self._outgoing = [slot for slot in slots if slot.transient.has_output]
        self._fetched: list[tuple[TransientSlot, HostBuffer]] = []
        """Outputs that are being copied to the host, for whose completion no callback is registered yet."""
        self._allocation: DeferredAllocation | None = DeferredAllocation(
            device, resources.memory.reservations, origin.session, self._reserve
        )
        self._launch_memory = LaunchMemoryWait(device, origin.session, resolved.entry)
        self._bound: BoundLaunch | None = None
        self._validates = bool(resolved.record.flags & LaunchFlag.VALIDATE)
        self._validation: list[Refusal | None] | None = None
        """The result of the validated launch, empty while it runs; None before it has been submitted."""
        self._request = MemoryRequest(device.grants, lambda: device.kick(origin.session))
        self._remaining = iterations
        self._stages = [self._prepare, self._upload, self._launch, self._download]
        self._up, self._kernel, self._down = (
            Stopwatch(device.server, device.tracks, self._track, timed) for _ in range(3)
        )
        for slot in slots:
            slot.input_copy.before, slot.output_copy.before = self._up.start, self._down.start
        self.arrived_ns = 0
        self._submitted_ns = 0

    def claim_transfers(self) -> None:
        """Claims all transfers that the dispatch names, or none. Raises Refusal."""
        session = self._origin.session
        try:
            for slot in self._slots:
                if slot.transient.upload:
                    slot.upload = claim(session, slot.transient.upload, UploadFlow, "dispatch")
                if slot.transient.download:
                    slot.download = claim(session, slot.transient.download, DownloadFlow, "dispatch")
        except Refusal as refusal:
            self.cancel(refusal)
            raise

    def step(self) -> bool:
        """Runs the remaining stages in order. Returns False if one must wait, True when all are done.

        Raises Refusal.
        """
        while self._stages:
            if not self._stages[0]():
                return False
            del self._stages[0]
        return True

    def cancel(self, refusal: Refusal) -> None:
        """Ends a dispatch that will not continue: frees all memory that it holds, and ends its open transfers."""
        self._stages.clear()
        self._allocation = None
        self._launch_memory.end()
        self._save_outputs_soon()
        session = self._origin.session
        for slot in self._slots:
            self._release(slot)
            if slot.upload is not None and session.uploads.get(slot.transient.upload) is slot.upload:
                self._resources.transfers.abort(session, slot.transient.upload, refusal)
            if slot.download is not None and session.downloads.get(slot.transient.download) is slot.download:
                self._resources.transfers.abort(session, slot.transient.download, refusal)

    # ---- the stages ----

    def _prepare(self) -> bool:
        """Waits for the module and the kernel's local memory, checks the launch, and allocates all transient buffers.

        Raises Refusal without any buffer.
        """
        if self._entry.module.pending:
            return False
        plan = self._resources.binder.check(self._resolved)
        if not self._launch_memory.ready() or self._track.full:
            return False
        assert self._allocation is not None
        try:
            if not self._allocation.run():
                return False
        except Refusal as refusal:
            self._device.telemetry.out_of_memory += 1
            raise Refusal(
                refusal.reason,
                f"dispatch of {self._entry.name}: its {len(self._slots)} transient buffers do not fit: "
                f"{refusal.message}",
                fix=refusal.fix,
                details={**refusal.details, "buffers": len(self._slots)},
                retry_after_s=refusal.retry_after_s,
            ) from refusal
        self._allocation = None  # breaks a reference cycle between both objects
        self._bound = self._resources.binder.fill(plan, self._resolved)
        return True

    def _reserve(self) -> None:
        """Takes one reservation for all buffers, so that they are allocated together or not at all."""
        if not self._slots:
            return
        device = self._device
        alignment = device.server.properties.memory_alignment
        sizes = [-(-slot.transient.size // alignment) * alignment for slot in self._slots]
        *offsets, required = accumulate(sizes, initial=0)
        if required >= CHECK_FROM:
            check_budget(required, device.server.memory_info(), device.spec.memory_limit)
        buffers = [slot.buffer for slot in self._slots]
        reservation = self._resources.memory.reservations.allocate(self._origin.session, required, self._track, buffers)
        for slot, offset in zip(self._slots, offsets, strict=True):
            slot.assign(reservation, offset)

    def _upload(self) -> bool:
        try:
            self._incoming = [slot for slot in self._incoming if not self._fill(slot)]
        finally:
            self._up.stop()
        return not self._incoming

    def _fill(self, slot: TransientSlot) -> bool:
        """Fills the buffer. Returns True once it is filled completely."""
        transient = slot.transient
        if slot.upload is not None:
            return self._resources.transfers.uploads.receive(slot.upload, slot.input_copy)
        if not transient.size:
            return True
        if self._track.full:
            return False
        if not transient.has_input:
            self._clear(slot.buffer)
            return True
        if not slot.input_copy.put(0, slot.data):
            return False
        self._device.telemetry.upload_inline_bytes += transient.size
        return True

    def _clear(self, buffer: Buffer) -> None:
        device = self._device
        device.tracks.claim_position(self._track, (buffer.usage,))
        self._up.start()
        device.begin(self._origin.stream, buffer.size)
        device.server.fill(buffer.address, CLEAR, buffer.size, self._track.stream)
        device.telemetry.fills += 1

    def _launch(self) -> bool:
        bound = self._bound
        assert bound is not None
        if self._track.closed:
            return False
        if self._validates:
            return self._validate(bound)
        self._claim_position(bound)
        quota = MAX_PER_ITERATION
        try:
            while self._remaining and quota and not self._track.closed:
                self._kernel.start()
                count = min(self._remaining, quota, WINDOW, self._track.room)
                self._resources.binder.issue(self._origin.stream, bound, count)
                self._remaining -= count
                quota -= count
        finally:
            self._kernel.stop()
        if self._remaining:
            return False
        self._release_inputs()
        return True

    def _claim_position(self, bound: BoundLaunch) -> None:
        """Orders a timed kernel after other streams, so that the wait for them does not count as its time."""
        if self._timed:
            self._device.tracks.claim_position(self._track, bound.writes, bound.reads)

    def _validate(self, bound: BoundLaunch) -> bool:
        """Launches the kernel on copies between red zones, and waits until it is done. Raises what it has found."""
        if self._validation is None:
            self._kernel.start()
            try:
                validation = Validation(
                    self._device, self._resources.binder, self._origin, bound, self._resolved, self._settle
                )
                if not validation.run():
                    return False
            except Refusal as refusal:
                if not self._request.waits(refusal):
                    raise
                return False
            finally:
                self._kernel.stop()
            self._validation = []
        if not self._validation:
            return False
        (violation,) = self._validation
        if violation is not None:
            raise violation
        self._release_inputs()
        return True

    def _settle(self, violation: Refusal | None) -> None:
        self._validation = [violation]
        self._device.kick(self._origin.session)

    def _release_inputs(self) -> None:
        """Releases the buffers without an output."""
        for slot in self._slots:
            if not slot.transient.has_output:
                self._release(slot)

    def _download(self) -> bool:
        try:
            self._outgoing = [slot for slot in self._outgoing if not self._fetch(slot)]
        finally:
            self._down.stop()
        if self._outgoing:
            self._save_outputs_soon()  # the remaining outputs may be waiting for this memory
            return False
        self._submitted_ns = time.perf_counter_ns()
        pending_outcomes = self._device.tracks.pending_outcomes
        outcomes = [outcome for slot in self._slots for outcome in pending_outcomes.of_buffer(slot.buffer.usage)]
        if outcomes:
            self._save_outputs_soon()  # the outcomes may take long to become known
        self._device.tracks.on_complete(self._track, both(outcomes, partial(self._answer, outcomes)))
        return True

    def _fetch(self, slot: TransientSlot) -> bool:
        """Submits the copy of an output to the host. Returns True once all of it is submitted."""
        transient = slot.transient
        if slot.download is not None:
            if not self._resources.transfers.downloads.send(slot.download, slot.output_copy):
                return False
        elif transient.length:
            if self._track.full:
                return False
            copy = slot.output_copy
            host = copy.find(transient.length)
            if host is not None:
                copy.download_staged(host, 0, transient.length)
                self._fetched.append((slot, host))
            else:
                data = copy.get_now(0, transient.length) if copy.without(transient.length) else None
                if data is None:
                    return False
                slot.output = data
            self._device.telemetry.download_inline_bytes += transient.length
        self._release(slot)
        return True

    def _save_outputs_soon(self) -> None:
        """Copies outputs out of page-locked memory as soon as they have arrived, possibly before the answer."""
        fetched, self._fetched = self._fetched, []
        if fetched:
            self._device.tracks.on_complete(self._track, partial(self._save_outputs, fetched))

    def _save_outputs(self, fetched: Sequence[tuple[TransientSlot, HostBuffer]]) -> None:
        for slot, host in fetched:
            slot.output = bytes(host.view[: slot.transient.length])
            self._device.staging.release(host)

    # ---- completion ----

    def _release(self, slot: TransientSlot) -> None:
        self._resources.memory.release(self._origin.session, slot.buffer)

    def _answer(self, outcomes: Sequence[PendingOutcome]) -> None:
        """Answers the dispatch. `outcomes` belong to collectives whose results its kernel used."""
        self._save_outputs(self._fetched)
        failure = next((outcome.failure for outcome in outcomes if outcome.failure is not None), None)
        if failure is not None:
            self._origin.skip(failure, ())
            return
        outputs = [slot for slot in self._slots if slot.transient.has_output]
        now = time.perf_counter_ns()
        result = commands_pb2.DispatchResult(
            outputs=[slot.output for slot in outputs],
            sizes=[slot.transient.length for slot in outputs],
            wall_ns=now - self.arrived_ns,
            enqueue_ns=self._submitted_ns - self.arrived_ns,
            wait_ns=now - self._submitted_ns,
        )
        if self._timed:
            result.upload_ns = self._up.elapsed_ns
            result.kernel_ns = self._kernel.elapsed_ns
            result.download_ns = self._down.elapsed_ns
        self._device.telemetry.dispatched(result)
        self._origin.reply(commands_pb2.Result(dispatch=result))
