"""Dispatch: from host inputs to host outputs in one command. Covers the checks; `dispatch.run` executes it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.dispatch.cache import DispatchCache
from hearthd.device.dispatch.plan import BindingFailure, PointerTarget, named_transfers, read_bindings, refuse
from hearthd.device.dispatch.run import DispatchResources, DispatchRun, TransientSlot
from hearthd.device.launch.binder import Pointer, ResolvedRecord, find_window, split
from hearthd.device.operation import Operation, Origin
from hearthd.device.session.launch_plan import with_priority
from hearthd.device.session.session import DeviceSession


class DispatchCommands:
    """Checks the dispatches of all sessions. Device-handle thread only."""

    def __init__(self, resources: DispatchResources) -> None:
        self._resources = resources
        self._cache = DispatchCache()

    def dispatch(self, origin: Origin, command: commands_pb2.Dispatch) -> Operation:
        """Returns the operation of a dispatch.

        Raises one Refusal with all faults that can be found without the kernel.
        """
        try:
            return self._operation(origin, command)
        except Refusal as refusal:
            self._abort_transfers(origin.session, named_transfers(command), refusal)
            raise

    def _operation(self, origin: Origin, command: commands_pb2.Dispatch) -> Operation:
        arrived_ns = time.perf_counter_ns()
        session = origin.session
        if not origin.answered:
            raise Refusal(Reason.INVALID_ARGUMENT, "a dispatch needs a request number", fix="set Command.request")
        inputs = [binding.data for binding in command.bindings]
        cache_key, cached = self._cache.find(command, inputs)
        plan, failures = (
            read_bindings(command, inputs, self._resources.device.spec.max_inline_bytes)
            if cached is None
            else (cached.plan, [])
        )
        device = self._resources.device
        slots = {
            transient.binding: TransientSlot(device, origin, transient, inputs[transient.binding])
            for transient in plan.transients
        }
        pointers = _pointers(session, plan.pointer_targets, slots, failures)
        entry = session.functions.get(command.function)
        if entry is None:
            unknown = session.functions.unknown(command.function)
            raise refuse("a kernel", [BindingFailure(unknown.reason, unknown.message), *failures])
        origin.name = f"dispatch {entry.name}"
        if failures:
            raise refuse(entry.name, failures)
        if cached is None:
            cached = self._cache.add(cache_key, command, plan)
        record = with_priority(cached.record(command, origin.stream.handle), session.priority)
        window = find_window(session, record)
        run = DispatchRun(
            self._resources,
            origin,
            ResolvedRecord(record, origin.stream, entry, pointers, None, cached.key, window),
            list(slots.values()),
            plan.iterations,
            command.timed,
        )
        run.arrived_ns = arrived_ns
        run.claim_transfers()
        written, read = split(pointers, cached.read_only, window)
        operation = Operation(
            origin,
            run.step,
            writes=(origin.stream, *written),
            reads=(entry.module, *read),
            needs=(*written, *read),
        )
        operation.on_failure = run.cancel
        return operation

    def _abort_transfers(self, session: DeviceSession, transfers: Sequence[int], refusal: Refusal) -> None:
        """Ends the transfers that a refused command names, and notifies their other ends.

        Transfers that another command has claimed are left alone.
        """
        for number in transfers:
            flow = session.uploads.get(number) or session.downloads.get(number)
            if number not in session.over and (flow is None or not flow.claimed):
                self._resources.transfers.abort(session, number, refusal)


def _pointers(
    session: DeviceSession,
    pointer_targets: Sequence[PointerTarget],
    slots: dict[int, TransientSlot],
    failures: list[BindingFailure],
) -> list[Pointer]:
    """Returns the targets of the kernel's pointers, in order. Appends unknown handles to `failures`."""
    pointers: list[Pointer] = []
    for binding, handle, tensor_map in pointer_targets:
        if binding in slots:
            pointers.append(slots[binding].buffer)
            continue
        try:
            pointers.append(session.tensor_maps.find(handle) if tensor_map else session.buffers.find(handle))
        except Refusal as refusal:
            failures.append(BindingFailure(refusal.reason, f"binding {binding}: {refusal.message}"))
    return pointers
