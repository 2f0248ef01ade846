"""Checks of a launch against limits before the driver sees it; all failures are reported together.

Limits are those of the device (cudaDeviceProp); products are Python integers and cannot overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hearth_proto.launches import TENSOR_MAP_BYTES, LayoutEntry
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.graph_nodes import Dim
from hearthd.device.backend.resources import FunctionAttributes

AXES = "xyz"
INTEGER_KINDS = {"i": "a signed integer", "u": "an unsigned integer", "n": "an integer of unknown sign", "b": "a bool"}
"""Kinds of parameters, as in `Function`, that take an integer, and their names in messages."""


@dataclass(frozen=True)
class LaunchLimits:
    """A device's launch limits. Sizes in bytes."""

    max_threads_per_block: int
    max_block_dim: tuple[int, int, int]
    max_grid_dim: tuple[int, int, int]
    shared_mem_per_block_optin: int
    multiprocessors: int = 0
    max_threads_per_multiprocessor: int = 0
    max_blocks_per_multiprocessor: int = 0
    """Limit of blocks per multiprocessor; 0: unknown."""
    features: frozenset[str] = frozenset()
    max_access_window: int = 0
    """Limit of an access-policy window, in bytes."""


class Violation(str):
    """A sentence about a violated limit, with the path of the launch's field that violates it."""

    field: str
    __slots__ = ("field",)

    def __new__(cls, text: str, field: str) -> Violation:
        """Creates the sentence `text`."""
        violation = super().__new__(cls, text)
        violation.field = field
        return violation


def check(limits: LaunchLimits, kernel: FunctionAttributes, grid: Dim, block: Dim, shared_mem: int) -> list[str]:
    """Returns the violated limits, one sentence each; an empty list if the launch fits.

    Each sentence is a `Violation`.
    """
    violations: list[str] = []
    for name, dim in (("grid", grid), ("block", block)):
        violations += [
            Violation(f"{name}.{axis} is 0; every dimension must be at least 1", f"{name}.{axis}")
            for axis, n in zip(AXES, dim, strict=True)
            if not n
        ]
    for name, dim, maxima in (("block", block, limits.max_block_dim), ("grid", grid, limits.max_grid_dim)):
        violations += [
            Violation(f"{name}.{axis} is {n}; the device's maximum is {limit}", f"{name}.{axis}")
            for axis, n, limit in zip(AXES, dim, maxima, strict=True)
            if n > limit
        ]
    threads = block[0] * block[1] * block[2]
    if threads > limits.max_threads_per_block:
        text = f"the block has {threads} threads; the device's maximum is {limits.max_threads_per_block}"
        violations.append(Violation(text, "block"))
    elif threads > kernel.max_threads_per_block:
        text = f"the block has {threads} threads; this kernel's maximum is {kernel.max_threads_per_block} "
        violations.append(Violation(text + "(its registers or __launch_bounds__)", "block"))
    total = shared_mem + kernel.static_shared_bytes
    if total > limits.shared_mem_per_block_optin:
        text = (
            f"{total} bytes of shared memory ({shared_mem} dynamic, {kernel.static_shared_bytes} static) are "
            f"requested; the device's maximum per block is {limits.shared_mem_per_block_optin}"
        )
        violations.append(Violation(text, "shared_mem"))
    return violations


def check_parameters(
    arguments: Sequence[LayoutEntry], parameters: Sequence[tuple[int, int]], kinds: str = ""
) -> list[str]:
    """Returns the errors in the number, sizes and types of the arguments, one sentence each.

    Offsets may differ, because the daemon moves the arguments. `kinds`: as in `Function`; empty: unknown.
    """
    if len(arguments) != len(parameters):
        count = "1 argument is" if len(arguments) == 1 else f"{len(arguments)} arguments are"
        text = f"{count} given; the kernel has {len(parameters)} parameter{'' if len(parameters) == 1 else 's'}"
        return [Violation(text, "arguments")]
    violations: list[str] = []
    for index, (argument, (_, size), kind) in enumerate(
        zip(arguments, parameters, kinds or "?" * len(parameters), strict=True)
    ):
        if converted(argument) and kind == "f":
            text = f"argument {index} is an integer; the kernel's parameter has a floating-point type of {size} bytes"
            violations.append(Violation(text + _scalar(kind, size), f"arguments[{index}]"))
        elif argument.size != size and not (converted(argument) and kind in INTEGER_KINDS):
            text = f"argument {index} has {argument.size} bytes{_kind(argument)}; the kernel's parameter has {size}"
            violations.append(
                Violation(text if argument.pointer else text + _scalar(kind, size), f"arguments[{index}]")
            )
    return violations


def converted(argument: LayoutEntry) -> bool:
    """True for an integer that is converted to the parameter's type."""
    return argument.read_only and not argument.pointer


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


def _kind(argument: LayoutEntry) -> str:
    if not argument.pointer:
        return ""
    return " (a tensor map)" if argument.size == TENSOR_MAP_BYTES else " (a buffer)"


def refuse(
    kernel: str,
    violations: list[str],
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
        + "; ".join(violations),
        fix=fix or LIMITS_FIX,
        details={
            "kernel": kernel,
            "grid": grid,
            "block": block,
            "shared_mem": shared_mem,
            "failures": len(violations),
        },
        fields=list(dict.fromkeys(violation.field for violation in violations if isinstance(violation, Violation))),
    )


LIMITS_FIX = "launch within these limits; node.device(i).properties and the function's attributes hold them"


def fix_of_arguments(arguments: Sequence[LayoutEntry], parameters: Sequence[tuple[int, int]]) -> str:
    """Returns the fix for arguments that do not match the kernel's parameters.

    Args:
        arguments: The arguments of the launch.
        parameters: Offset and size in bytes of each parameter of the kernel.
    """
    passed = _describe_sizes([argument.size for argument in arguments])
    needed = _describe_sizes([size for _, size in parameters])
    return f"pass {needed}, as the kernel's source declares; this launch passes {passed}"


_MAX_SIZES = 16
"""Maximum number of sizes in a message."""


def _describe_sizes(sizes: Sequence[int]) -> str:
    """Returns the number and the sizes of arguments as text: "3 arguments, of 8, 8 and 4 bytes"."""
    if not sizes:
        return "no arguments"
    shown = [str(size) for size in sizes[:_MAX_SIZES]]
    if len(sizes) > _MAX_SIZES:
        text = f"{', '.join(shown)}, ..."
    elif len(sizes) > 1:
        text = f"{', '.join(shown[:-1])} and {shown[-1]}"
    else:
        text = shown[0]
    return f"{len(sizes)} argument{'s' if len(sizes) > 1 else ''}, of {text} bytes"
