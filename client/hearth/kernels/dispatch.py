"""Dispatch: arrays in, kernel, arrays out, in one call; the daemon finds the memory and takes it back.

>>> total, = gpu.dispatch(add, 4, 256, ins=[a, b], outs=[((1024,), np.float32)], scalars=[np.int32(1024)])
>>> state, = gpu.dispatch(step, 4, 256, args=[InOut(state), weights, np.float32(0.1)], iterations=100)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hearth import lazy_numpy as np
from hearth import stream as streams
from hearth import telemetry
from hearth.errors import LaunchTypeError
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from hearth.kernels.bindings import Array
    from hearth.kernels.function import Function
    from hearth.kernels.pending_dispatch import Job, PendingDispatch
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection


_Given = tuple["Sequence[Any] | None", Sequence[Any], Sequence[Any], Sequence[Any]]
"""`args`, `ins`, `outs` and `scalars`."""


class How(NamedTuple):
    """The keywords of a dispatch that are not its arguments."""

    shared_mem: int
    iterations: int
    timeout: float | None
    stream: streams.Stream | None
    timed: bool = False
    copy: bool = False
    apart: bool = False
    """Nothing is written to arrays that are given for the outputs before all is there."""


class Dispatching:
    """The part of `Device` that dispatches. What only a dispatch needs is imported by the first."""

    _connection: Connection

    @telemetry.traced("hearth.dispatch", telemetry.of_dispatch)
    def dispatch(
        self,
        function: Function,
        grid: Any,
        block: Any,
        args: Sequence[Any] | None = None,
        *,
        ins: Sequence[Any] = (),
        outs: Sequence[Any] = (),
        scalars: Sequence[Any] = (),
        shared_mem: int = 0,
        iterations: int = 1,
        timeout: float | None = None,
        stream: streams.Stream | None = None,
        out: Sequence[Array | None] | None = None,
    ) -> list[Array]:
        """Uploads the inputs, runs the kernel and returns the outputs, in the order of the arguments.

        `args` in the kernel's order: `In`, `Out`, `InOut`, NumPy arrays (as `In`), device arrays, values. Or, for
        kernels that take their parameters in this order: `ins`, `outs` (each `(shape, dtype)` or one of the classes)
        and `scalars`. `iterations`: launched so many times in a row, between one upload and one download. `timeout`, in
        seconds, is the kernel's, as in a launch. `out`: for each output an array for it, or None; nothing is written to
        any before the kernel is done.

        Ordered on `stream` like a launch. Raises what is wrong with the dispatch, all of it; errors of earlier commands
        stay where they are.
        """
        given = (args, ins, outs, scalars)
        job = self._job(function, grid, block, given, out, How(shared_mem, iterations, timeout, stream))
        job.carry()
        return [output.host for output in job.outputs]

    def dispatch_async(
        self,
        function: Function,
        grid: Any,
        block: Any,
        args: Sequence[Any] | None = None,
        *,
        ins: Sequence[Any] = (),
        outs: Sequence[Any] = (),
        scalars: Sequence[Any] = (),
        shared_mem: int = 0,
        iterations: int = 1,
        timeout: float | None = None,
        stream: streams.Stream | None = None,
        out: Sequence[Array | None] | None = None,
        timed: bool = False,
        copy: bool = True,
    ) -> PendingDispatch:
        """As `dispatch`, without waiting: see `PendingDispatch`.

        Arrays given as `out` hold the outputs when its `result` has returned. `timed` measures the times on the device.
        Inputs may be changed once this returns; `copy=False` saves a copy of the large ones and asks for them to stay
        as they are until the dispatch is done.
        """
        from hearth.kernels.pending_dispatch import PendingDispatch

        given = (args, ins, outs, scalars)
        how = How(shared_mem, iterations, timeout, stream, timed, copy)
        return PendingDispatch(self._job(function, grid, block, given, out, how))

    def _job(
        self,
        function: Function,
        grid: Any,
        block: Any,
        arguments_given: _Given,
        out: Sequence[Array | None] | None,
        how: How,
    ) -> Job:
        """Everything is checked, and every output has its place, before anything is sent."""
        from hearth.kernels import arguments, bindings, launch_config
        from hearth.kernels.pending_dispatch import Job

        connection = self._connection
        if getattr(function, "_connection", None) is not connection:
            raise LaunchTypeError(
                f"{function!r} is no kernel of {self!r}.",
                reason="LAUNCH_INVALID",
                fix="get it from a module of this device: gpu.RawModule(...).get_function(name).",
            )
        given = bindings.in_order(*arguments_given)
        launch_config.check_shared_mem(how.shared_mem)
        launch_config.check_iterations(how.iterations)
        attachment = connection.attachment()
        command = commands_pb2.Command(stream=streams.resolve(how.stream, connection, attachment))
        dispatch = command.dispatch
        dispatch.function = function._bind(attachment).handle
        dispatch.grid.x, dispatch.grid.y, dispatch.grid.z = arguments.dimensions("grid", grid)
        dispatch.block.x, dispatch.block.y, dispatch.block.z = arguments.dimensions("block", block)
        dispatch.shared_mem = how.shared_mem
        dispatch.iterations = how.iterations
        dispatch.timeout_ns = launch_config.nanoseconds(how.timeout)
        dispatch.timed = how.timed
        dispatch.bindings.extend(
            bindings.binding_of(index, argument, function, attachment) for index, argument in enumerate(given)
        )
        places = bindings.places_of(given, out)
        limits = attachment.session.limits
        copy = partial(_copied, connection, attachment) if how.copy else None
        uploads = bindings.send_inputs(given, dispatch, limits, connection.mint, copy)
        bindings.return_outputs(dispatch, places, limits, connection.mint)
        if how.apart and out is not None:
            for output in places:
                if output.download and output.scratch is output.host:
                    output.scratch = np.empty_like(output.host)
        return Job(connection, attachment, command, uploads, places)


def _copied(connection: Connection, attachment: Attachment, data: memoryview) -> memoryview:
    from hearth.transfer import registered  # small arrays do without

    return registered.taken(connection, attachment, data)
