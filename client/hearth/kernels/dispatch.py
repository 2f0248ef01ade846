"""Dispatch: upload of arrays, launch and download in one call; the daemon allocates and frees the memory.

>>> total, = gpu.dispatch(add, 4, 256, ins=[a, b], outs=[((1024,), np.float32)], scalars=[np.int32(1024)])
>>> state, = gpu.dispatch(step, 4, 256, args=[InOut(state), weights, np.float32(0.1)], iterations=100)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hearth import base_stream as streams
from hearth import lazy_numpy as np
from hearth.codec import timeouts
from hearth.errors import LaunchTypeError, UnsupportedError
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from hearth.interfaces import DeviceContext
    from hearth.kernels.base_function import BaseFunction
    from hearth.kernels.base_pending_dispatch import Job
    from hearth.kernels.bindings import Array
    from hearth.kernels.launch_attributes import LaunchAttributes
    from hearth.session.connection import Connection


_ArgumentLists = tuple["Sequence[Any] | None", Sequence[Any], Sequence[Any], Sequence[Any]]
"""`args`, `ins`, `outs` and `scalars` of a dispatch."""


class DispatchOptions(NamedTuple):
    """The keywords of a dispatch other than the kernel's arguments."""

    shared_mem: int
    iterations: int
    timeout: float | None
    stream: streams.BaseStream | None
    mode: str
    cooperative: bool | Literal["fit"]
    cluster: Any
    attributes: LaunchAttributes | None
    timed: bool = False
    copy: bool = False
    apart: bool = False
    """True if arrays given for the outputs are written only after all results have arrived."""


def check_keywords(dispatch: Callable[..., Any], unknown: Mapping[str, Any]) -> None:
    """Checks that a call of a device's `dispatch` or `dispatch_async` has no unknown keyword.

    Args:
        dispatch: The method.
        unknown: The keywords that it does not have.

    Raises:
        LaunchTypeError: There is such a keyword.
    """
    if unknown:
        from hearth.keywords import unknown_keyword

        raise unknown_keyword(f"gpu.{dispatch.__name__}", unknown, dispatch, LaunchTypeError, "LAUNCH_INVALID")


def job_of(
    device: DeviceContext[Any],
    function: BaseFunction,
    grid: Any,
    block: Any,
    argument_lists: _ArgumentLists,
    out: Sequence[Array | None] | None,
    options: DispatchOptions,
) -> Job:
    """Checks the dispatch, determines a destination for every output, and sends the command.

    Args:
        device: The device.
        function: The kernel.
        grid: Blocks along each axis, as in a launch.
        block: Threads along each axis, as in a launch.
        argument_lists: `args`, `ins`, `outs` and `scalars`.
        out: For each output an array to fill, or None; None: new ones.
        options: The other keywords.

    Returns:
        The job; its transfers have not been started.

    Raises:
        LaunchTypeError: The kernel belongs to another device, or an argument cannot be passed to a kernel.
        LaunchError: The client has found the dispatch invalid.
        ArgumentError, DtypeError: An argument or an array of `out` does not match, or a keyword is invalid.
        UnsupportedError: The daemon is too old for a keyword.
    """
    from hearth.kernels import arguments, bindings, dispatch_transfers, launch_config
    from hearth.kernels.base_pending_dispatch import Job
    from hearth.session.memory import DeviceOperand

    connection = device._connection
    if getattr(function, "_connection", None) is not connection:
        raise LaunchTypeError(
            f"{function!r} is not a kernel of {device!r}.",
            fix="get it from a module of this device: gpu.RawModule(...).get_function(name).",
        )
    if isinstance(grid, DeviceOperand):
        raise LaunchTypeError(
            f"the grid of the dispatch is {grid!r}; a dispatch takes no grid in device memory.",
            fix="launch the kernel, f(grid, block, args), or pass the grid as integers.",
        )
    args = bindings.in_order(*argument_lists)
    launch_config.check_shared_mem(options.shared_mem)
    launch_config.check_iterations(options.iterations)
    attachment = connection.attachment()
    command = commands_pb2.Command(stream=streams.resolve(options.stream, connection, attachment))
    dispatch = command.dispatch
    dispatch.function = function._bind(attachment).handle
    dispatch.grid.x, dispatch.grid.y, dispatch.grid.z = arguments.dimensions("grid", grid)
    dispatch.block.x, dispatch.block.y, dispatch.block.z = arguments.dimensions("block", block)
    dispatch.shared_mem = int(options.shared_mem)
    dispatch.iterations = options.iterations
    dispatch.timeout_ns = timeouts.nanoseconds(options.timeout)
    dispatch.timed = options.timed
    _set_launch_options(dispatch, function, connection, options)
    function._check_pointers(args)
    function._check_fit(options.cooperative, grid, block, options.shared_mem, options.cluster)
    if options.attributes is not None:
        from hearth.kernels import launch_attributes

        dispatch.attributes.CopyFrom(launch_attributes.message_of(options.attributes, connection))
    dispatch.bindings.extend(
        bindings.binding_of(index, argument, function, attachment) for index, argument in enumerate(args)
    )
    outputs = bindings.output_destinations(args, out)
    limits = attachment.session.limits
    uploads = bindings.send_inputs(args, dispatch, limits, connection.mint)
    if options.copy and uploads:
        uploads = dispatch_transfers.copied(connection, attachment, uploads)
    bindings.return_outputs(dispatch, outputs, limits, connection.mint)
    if options.apart and out is not None:
        for output in outputs:
            if output.download and output.scratch is output.host:
                output.scratch = np.empty_like(output.host)
    return Job(connection, attachment, command, uploads, outputs)


def _set_launch_options(
    dispatch: commands_pb2.Dispatch, function: BaseFunction, connection: Connection, options: DispatchOptions
) -> None:
    """Sets the mode, the cluster, and whether the launch is cooperative."""
    from hearth.kernels import arguments, launch_config

    supported = connection.limits.dispatch_options
    cooperative = function._cooperative(options.cooperative) if supported else options.cooperative
    flags = launch_config.flags_of(options.mode, cooperative)
    if (flags or options.cluster is not None) and not supported:
        raise UnsupportedError(
            "the daemon is of an older version, whose dispatches have no mode, cluster or cooperative launch.",
            fix="copy the arrays to the device, launch the kernel and read the results, or update the daemon.",
        )
    dispatch.mode = getattr(commands_pb2, f"LAUNCH_MODE_{options.mode.upper()}")
    dispatch.cooperative, dispatch.fit = bool(cooperative), cooperative == launch_config.FIT
    if options.cluster is not None:
        cluster = dispatch.cluster
        cluster.x, cluster.y, cluster.z = arguments.dimensions("cluster", options.cluster)
