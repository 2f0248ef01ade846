"""Errors for arguments that cannot be passed to a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hearth import lazy_numpy as np
from hearth.errors import LaunchError, LaunchTypeError


def unpassable(index: int, arg: Any) -> LaunchTypeError:
    """Builds the error of an argument whose type cannot be passed to a kernel.

    Args:
        index: Number of the argument.
        arg: The argument.

    Returns:
        The error.
    """
    if np.is_imported() and isinstance(arg, np.ndarray):
        description = f"a NumPy array of shape {arg.shape} and dtype {arg.dtype}, which is in host memory"
        fix = (
            "upload it with gpu.asarray(...) and pass the result; for a single value pass a scalar, e.g. np.float32(x)."
        )
        if np.is_masked(arg):
            description = f"a masked array of shape {arg.shape} and dtype {arg.dtype}, with elements that have no value"
            fix = "replace them first: gpu.asarray(x.filled(value)), or x.filled(value).flat[0] for a single value."
        elif arg.size == 1 and arg.dtype.kind not in "OSU":
            description = (
                f"a NumPy array of one element of 8 bytes ({arg.dtype}), and a pointer parameter would take its value "
                "for an address"
            )
            fix = "pass x.flat[0] for the value, or gpu.asarray(x) for a pointer."
    elif isinstance(arg, list | tuple):
        description, fix = f"a {type(arg).__name__}", "upload it with gpu.asarray(...)."
    elif isinstance(arg, str):
        description, fix = "a str", "pass bytes for a struct, or upload the text with gpu.asarray(...)."
    else:
        description = f"of type {type(arg).__module__}.{type(arg).__qualname__}"
        fix = "pass a DeviceArray, a number, a NumPy or ctypes scalar, or bytes for a struct."
        if any(kind.__module__ == "_ctypes" for kind in type(arg).__mro__):
            fix = (
                "pass ctypes numbers, structures and unions in this machine's byte order; upload arrays "
                "and the data that pointers refer to with gpu.asarray(...)."
            )
            if _is_struct_of_pointers(arg):
                description += ", a structure with pointers"
                fix = (
                    "pass hearth.Struct(bytes(x), pointers={Type.field.offset: array}) with the device array of each "
                    "pointer; the addresses in a ctypes structure are those of this process."
                )
        elif _is_buffer(arg):
            description, fix = (
                f"{description}, which is in host memory",
                "upload it with gpu.asarray(...) and pass the result.",
            )
    return LaunchTypeError(
        f"argument {index} is {description}; it cannot be passed to a kernel.", fix=fix,
        details={"argument": str(index)},
    )  # fmt: skip


def _is_struct_of_pointers(arg: Any) -> bool:
    import ctypes

    from hearth.kernels import ctypes_values

    return isinstance(arg, ctypes.Structure | ctypes.Union) and ctypes_values.has_pointers(type(arg))


def _is_buffer(arg: Any) -> bool:
    try:
        memoryview(arg).release()
    except (TypeError, ValueError, BufferError):  # no buffer, or a released one
        return False
    return True


def too_large(index: int, arg: int) -> LaunchError:
    """Builds the error of a Python int that does not fit in 64 bits with a sign.

    Args:
        index: Number of the argument.
        arg: The argument.

    Returns:
        The error.
    """
    return LaunchError(
        f"argument {index} is {arg}; a Python int is passed as a 64-bit signed integer at most.",
        fix="pass np.uint64(x) for an unsigned parameter of 8 bytes.",
        details={"argument": str(index)},
    )


def out_of_range(args: Sequence[Any]) -> LaunchError:
    """Builds the error of a number that does not fit in its C type; the error names the argument of `args`."""
    for index, arg in enumerate(args):
        if isinstance(arg, int) and not -(2**63) <= arg < 2**63:
            return too_large(index, arg)
    return LaunchError(
        "the values of the arguments are out of the range of their types.",
        fix="wrap each value in the type that the kernel declares, e.g. np.uint64(...).",
    )
