"""Configuration of a launch: packs the head of its record from checked keywords."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from hearth.codec import timeouts
from hearth.errors import ArgumentError, LaunchError, LaunchTypeError
from hearth.kernels import arguments
from hearth.session.memory import DeviceOperand
from hearth_proto import launches
from hearth_proto.launches import LaunchFlag

MODES = {"checked": 0, "unchecked": int(LaunchFlag.UNCHECKED), "validate": int(LaunchFlag.VALIDATE)}
FIT = "fit"
"""Value of `cooperative` for a grid that the daemon may reduce."""
SHARED_MAX = 2**32 - 1
ITERATIONS_MAX = 2**32 - 1


def head(
    function: int,
    stream: int,
    grid: Any,
    block: Any,
    args: Sequence[Any],
    shared_mem: int,
    timeout: float | None,
    mode: str,
    cooperative: bool | str,
    cluster: Any,
    iterations: int,
    converts_integers: bool = True,
    attributes: launches.Attributes | None = None,
) -> tuple[bytes, arguments.Signature]:
    """Packs the part of a record that does not change from launch to launch.

    Args:
        function: Handle of the kernel.
        stream: Handle of the stream.
        grid: Blocks along each axis, or a device array.
        block: Threads along each axis.
        args: The kernel's arguments, of which only the types matter.
        shared_mem: Dynamic shared memory in bytes.
        timeout: Time limit in seconds; None: none.
        mode: ``"checked"``, ``"unchecked"`` or ``"validate"``.
        cooperative: Makes the whole grid resident at the same time; ``"fit"`` lets the daemon reduce the grid for that.
        cluster: Blocks of a cluster along each axis; None: no clusters.
        iterations: Number of launches in a row.
        converts_integers: The daemon converts integers to the types of the kernel's parameters.
        attributes: Further attributes of the launch; None: none.

    Returns:
        The head, and the signature that packs the arguments.

    Raises:
        ArgumentError: `mode`, `timeout` or `cooperative` is invalid.
        LaunchError: Another keyword is out of range.
        LaunchTypeError: An argument or a dimension has a wrong type.
    """
    flags = flags_of(mode, cooperative)
    check_shared_mem(shared_mem)
    extension = _extension(grid, cluster, iterations, attributes)
    extended = b""
    if extension is not None:
        flags |= launches.extension_flags(extension)
        extended = launches.pack_extension(extension)
    dims = (0, 0, 0) if isinstance(grid, DeviceOperand) else arguments.dimensions("grid", grid)
    signature = arguments.signature(args)
    header = launches.HEADER.pack(
        signature.size + len(extended),
        signature.parameters,
        signature.handles,
        function,
        stream,
        *dims,
        *arguments.dimensions("block", block),
        int(shared_mem),
        flags,
        signature.block_size,
        timeouts.nanoseconds(timeout),
    )
    return header + extended + (signature.layout if converts_integers else signature.exact_layout), signature


def flags_of(mode: str, cooperative: bool | str) -> int:
    """Returns the flags of a launch.

    Args:
        mode: ``"checked"``, ``"unchecked"`` or ``"validate"``.
        cooperative: Makes the whole grid resident at the same time; ``"fit"`` lets the daemon reduce the grid for that.

    Raises:
        ArgumentError: `mode` or `cooperative` is invalid.
    """
    if mode not in MODES:
        raise ArgumentError(
            f"mode is {mode!r}, which is not a launch mode.",
            fix=f"use one of {', '.join(map(repr, MODES))}.",
        )
    flags = MODES[mode] | (LaunchFlag.COOPERATIVE if cooperative else 0)
    if isinstance(cooperative, str):
        if cooperative != FIT:
            raise ArgumentError(
                f"cooperative is {cooperative!r}, which is not a kind of cooperative launch.",
                fix=f"use True, False or {FIT!r}.",
            )
        flags |= LaunchFlag.FIT
    return flags


def check_shared_mem(shared_mem: int) -> None:
    """Raises `LaunchError` if `shared_mem` is not a valid number of bytes: `LaunchTypeError` if it is no integer."""
    try:
        operator.index(shared_mem)
    except TypeError:
        raise LaunchTypeError(
            f"shared_mem is {shared_mem!r} ({type(shared_mem).__name__}); it must be an integer.",
            fix="use int(...) or //.",
        ) from None
    if not 0 <= shared_mem <= SHARED_MAX:
        raise LaunchError(
            f"shared_mem is {shared_mem} bytes; it must be from 0 to {SHARED_MAX}.",
            fix="check gpu.properties.shared_mem_per_block_optin.",
        )


def check_iterations(iterations: int) -> None:
    """Raises `LaunchError` if `iterations` is not a valid number of launches."""
    if isinstance(iterations, bool) or not isinstance(iterations, int) or not 1 <= iterations <= ITERATIONS_MAX:
        raise LaunchError(
            f"iterations is {iterations!r}; it must be an integer from 1 to {ITERATIONS_MAX}.",
            fix="skip the launch when there is nothing to repeat."
            if iterations == 0
            else "check how the value is computed.",
        )


def _extension(
    grid: Any, cluster: Any, iterations: int, attributes: launches.Attributes | None
) -> launches.Extension | None:
    """Packs the fields that few launches have; returns None for a launch without any of them.

    They are the cluster, the iterations, a grid in device memory, and attributes.
    """
    check_iterations(iterations)
    blocks = (0, 0, 0) if cluster is None else arguments.dimensions("cluster", cluster)
    if isinstance(grid, DeviceOperand):
        _check_grid(grid)
        return launches.Extension(blocks, iterations, grid._memory.handle, grid._offset, attributes)
    if iterations == 1 and cluster is None and attributes is None:
        return None
    return launches.Extension(blocks, iterations, attributes=attributes)


def _check_grid(grid: DeviceOperand) -> None:
    """Raises `LaunchTypeError` for an array that is not a grid: three uint32, or int32."""
    dtype, size = getattr(grid, "dtype", None), getattr(grid, "size", None)
    if str(dtype) not in ("uint32", "int32") or size != 3:
        raise LaunchTypeError(
            f"the grid is {grid!r}; a grid in device memory must be an array of three uint32.",
            fix="let a kernel write three unsigned int into gpu.zeros(3, np.uint32), or pass integers.",
        )
