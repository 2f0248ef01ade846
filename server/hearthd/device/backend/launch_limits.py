"""Checks of a launch against limits before the driver sees it; all failures are reported together.

Limits are those of the device (cudaDeviceProp); products are Python integers and cannot overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hearth_proto.launches import TENSOR_MAP_BYTES, Place
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.graph_nodes import Dim

AXES = "xyz"
INTEGER_KINDS = {"i": "a signed integer", "u": "an unsigned integer", "n": "an integer of unknown sign", "b": "a bool"}
"""Kinds of parameters, as in `Function`, that take an integer, and their names in messages."""


@dataclass(frozen=True)
class LaunchLimits:
    """A device's launch limits. Sizes in bytes."""

    max_threads_per_block: int
    max_block_dim: tuple[int, int, int]
    max_grid_dim: tuple[int, int, int]
    shared_mem_per_block: int
    shared_mem_per_block_optin: int
    multiprocessors: int = 0
    max_threads_per_multiprocessor: int = 0
    max_blocks_per_multiprocessor: int = 0
    """Limit of blocks per multiprocessor; 0: unknown."""
    features: frozenset[str] = frozenset()


@dataclass(frozen=True)
class KernelLimits:
    """Limits of a loaded function.

    `max_threads_per_block` depends on registers and launch bounds; `static_shared_bytes` is its static shared memory in
    bytes.
    """

    max_threads_per_block: int
    static_shared_bytes: int


def check(limits: LaunchLimits, kernel: KernelLimits, grid: Dim, block: Dim, shared_mem: int) -> list[str]:
    """Returns the violated limits, one sentence each; an empty list if the launch fits."""
    wrong: list[str] = []
    for what, dim in (("grid", grid), ("block", block)):
        wrong += [
            f"{what}.{axis} is 0; every dimension must be at least 1"
            for axis, n in zip(AXES, dim, strict=True)
            if not n
        ]
    for what, dim, most in (("block", block, limits.max_block_dim), ("grid", grid, limits.max_grid_dim)):
        wrong += [
            f"{what}.{axis} is {n}; the device's maximum is {limit}"
            for axis, n, limit in zip(AXES, dim, most, strict=True)
            if n > limit
        ]
    threads = block[0] * block[1] * block[2]
    if threads > limits.max_threads_per_block:
        wrong.append(f"the block has {threads} threads; the device's maximum is {limits.max_threads_per_block}")
    elif threads > kernel.max_threads_per_block:
        wrong.append(
            f"the block has {threads} threads; this kernel's maximum is {kernel.max_threads_per_block} "
            "(its registers or __launch_bounds__)"
        )
    total = shared_mem + kernel.static_shared_bytes
    if total > limits.shared_mem_per_block_optin:
        wrong.append(
            f"{total} bytes of shared memory ({shared_mem} dynamic, {kernel.static_shared_bytes} static) are "
            f"requested; the device's maximum per block is {limits.shared_mem_per_block_optin}"
        )
    return wrong


def check_parameters(given: Sequence[Place], real: Sequence[tuple[int, int]], kinds: str = "") -> list[str]:
    """Returns the errors in the number, sizes and types of the arguments, one sentence each.

    Offsets may differ, because the daemon moves the arguments. `kinds`: as in `Function`; empty: unknown.
    """
    if len(given) != len(real):
        arguments = "1 argument is" if len(given) == 1 else f"{len(given)} arguments are"
        return [f"{arguments} given; the kernel has {len(real)} parameter{'' if len(real) == 1 else 's'}"]
    wrong: list[str] = []
    for index, (place, (_, real_size), kind) in enumerate(zip(given, real, kinds or "?" * len(real), strict=True)):
        if converted(place) and kind == "f":
            text = (
                f"argument {index} is an integer; the kernel's parameter has a floating-point type of {real_size} bytes"
            )
            wrong.append(text + _scalar(kind, real_size))
        elif place.size != real_size and not (converted(place) and kind in INTEGER_KINDS):
            text = f"argument {index} has {place.size} bytes{_kind(place)}; the kernel's parameter has {real_size}"
            wrong.append(text if place.pointer else text + _scalar(kind, real_size))
    return wrong


def converted(place: Place) -> bool:
    """True for an integer that is converted to the parameter's type."""
    return place.read_only and not place.pointer


def integer_range(kind: str, size: int) -> tuple[int, int]:
    """Returns the lowest and the highest integer that a parameter takes.

    A parameter of unknown sign takes the numbers of a signed one: a higher number is wrong for a signed parameter.

    Args:
        kind: A key of `INTEGER_KINDS`.
        size: Size of the parameter in bytes.

    Returns:
        The limits, both included.
    """
    if kind == "b":
        return 0, 1
    values = 1 << 8 * size
    return (0, values - 1) if kind == "u" else (-values // 2, values // 2 - 1)


def _scalar(kind: str, size: int) -> str:
    """Returns a hint that names NumPy's scalar type for a parameter; empty if the type of the parameter is unknown."""
    if kind == "b":
        return " (a bool: pass np.bool_(x) or a Python bool)"
    if kind in INTEGER_KINDS:
        return f" (an integer: pass np.{'u' if kind == 'u' else ''}int{8 * size}(x) or a Python int)"
    return f" (pass np.float{8 * size}(x))" if kind == "f" else ""


def _kind(place: Place) -> str:
    if not place.pointer:
        return ""
    return " (a tensor map)" if place.size == TENSOR_MAP_BYTES else " (a buffer)"


def refuse(
    kernel: str,
    wrong: list[str],
    grid: Dim,
    block: Dim,
    shared_mem: int,
    reason: Reason = Reason.LAUNCH_INVALID,
    fix: str = "",
) -> Refusal:
    """Returns the refusal of a launch, which lists all its errors."""
    return Refusal(
        reason,
        f"launch of {kernel} with grid {grid}, block {block}, {shared_mem} bytes of dynamic shared memory: "
        + "; ".join(wrong),
        fix=fix or LIMITS_FIX,
        details={
            "kernel": kernel,
            "grid": grid,
            "block": block,
            "shared_mem": shared_mem,
            "failures": len(wrong),
        },
    )


LIMITS_FIX = "launch within these limits; node.device(i).properties and the function's attributes hold them"


def fix_of_arguments(given: Sequence[Place], real: Sequence[tuple[int, int]]) -> str:
    """Returns the fix for arguments that do not match the kernel's parameters.

    Args:
        given: The arguments of the launch.
        real: Offset and size in bytes of each parameter of the kernel.
    """
    passed = _listed([place.size for place in given])
    needed = _listed([size for _, size in real])
    return f"pass {needed}, as the kernel's source declares; this launch passes {passed}"


_MOST_SIZES = 16
"""Maximum number of sizes in a message."""


def _listed(sizes: Sequence[int]) -> str:
    """Returns the number and the sizes of arguments as text: "3 arguments, of 8, 8 and 4 bytes"."""
    if not sizes:
        return "no arguments"
    shown = [str(size) for size in sizes[:_MOST_SIZES]]
    if len(sizes) > _MOST_SIZES:
        text = f"{', '.join(shown)}, ..."
    elif len(sizes) > 1:
        text = f"{', '.join(shown[:-1])} and {shown[-1]}"
    else:
        text = shown[0]
    return f"{len(sizes)} argument{'s' if len(sizes) > 1 else ''}, of {text} bytes"
