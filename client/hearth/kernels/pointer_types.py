"""Comparison of array arguments with the pointer types that a kernel's CUDA C++ source declares.

A kernel that declares ``float*`` reads an array of float64 as other numbers, without an error: compiled code does not
say what its pointers point to. The source does, so the client compares the two and warns. It never refuses a launch,
because a program may reinterpret memory on purpose, and because the source is only scanned, not parsed: declarations
that macros or templates make are not understood, and are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hearth.arrays.base_array import BaseArray
from hearth.calling_line import CallingLine
from hearth.session.memory import DeviceOperand

if TYPE_CHECKING:
    import numpy as np

_NAMES = {
    "float32": ("float",),
    "float64": ("double",),
    "float16": ("half", "__half"),
    "bool": ("bool",),
    "int16": ("short", "short int", "signed short", "int16_t", "unsigned short", "unsigned short int", "uint16_t"),
    "int32": ("int", "signed", "signed int", "int32_t", "unsigned", "unsigned int", "uint32_t", "uint"),
    "int64": (
        "long", "long int", "long long", "long long int", "signed long long", "int64_t", "ptrdiff_t",
        "unsigned long", "unsigned long int", "unsigned long long", "unsigned long long int", "uint64_t", "size_t",
    ),
}  # fmt: skip
_DTYPES = {name: dtype for dtype, names in _NAMES.items() for name in names}
"""The dtype of each C++ type that is compared; ``char`` is not, because it is also the type of plain bytes."""
_COMPARED = frozenset(_NAMES) | {"uint16", "uint32", "uint64"}
_NOISE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_QUALIFIERS = frozenset({"const", "volatile", "__restrict__", "__restrict", "restrict"})


def declared(source: str, name: str) -> tuple[str | None, ...]:
    """Finds the element types of a kernel's pointer parameters in its source.

    Args:
        source: CUDA C++ source.
        name: Name of the kernel, without template arguments.

    Returns:
        For each parameter the dtype that its pointer points to, such as ``"float32"``; None if it is no pointer or
        points to a type that is not compared. Empty if the source does not declare the kernel exactly once.
    """
    text = _without_noise(source)
    kernel = re.compile(rf"__global__\b[^;{{}}]*?\b{re.escape(name)}\s*\(")
    parameter_lists = {_parameters(text, match.end()) for match in kernel.finditer(text)}
    return tuple(map(_pointee, parameter_lists.pop())) if len(parameter_lists) == 1 else ()


@lru_cache(maxsize=1)  # the functions of a module have the same source
def _without_noise(source: str) -> str:
    """Returns the source without comments and string literals."""
    return _NOISE.sub(" ", source)


class HostOperand:
    """Argument of a dispatch for which the daemon allocates memory, and which the kernel takes as a pointer."""

    __slots__ = ()

    @property
    def _dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        raise NotImplementedError

    @property
    def _shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._dtype} {self._shape})"


class PointerTypes:
    """The pointer types of one kernel, and the warnings given."""

    def __init__(self, source: str, name: str) -> None:
        self._name = name
        self._declared = declared(source, name) if source else ()
        self._warned: set[tuple[int, str]] = set()

    def check(self, args: Sequence[Any]) -> None:
        """Warns, once for each argument and dtype, about arrays whose dtype is not the declared one.

        Signed and unsigned integers of one size count as the same.

        Args:
            args: Arguments of a launch or a dispatch.
        """
        for index, (expected, argument) in enumerate(zip(self._declared, args, strict=False)):
            dtype = None if expected is None else _pointed_at(argument)
            if expected is None or dtype is None:
                continue
            if dtype not in _COMPARED or dtype.removeprefix("u") == expected or (index, dtype) in self._warned:
                continue
            self._warned.add((index, dtype))
            CallingLine.current().warn(
                f"{self._name}: argument {index} is an array of {dtype}, and the source declares a pointer to "
                f"{_NAMES[expected][0]}. Fix: pass an array of {expected}, or change the declaration; to reinterpret "
                f"the memory on purpose, pass x.view({expected!r})."
            )


def _pointed_at(argument: Any) -> str | None:
    """Returns the name of the dtype of the array that an argument points to; None for other arguments."""
    while isinstance(argument, DeviceOperand) and not isinstance(argument, BaseArray):
        argument = getattr(argument, "array", None)  # that of read_only(x) and of pointer(x)
    if isinstance(argument, BaseArray | HostOperand):
        return argument._dtype.name  # does not import NumPy
    return None


def _parameters(text: str, begin: int) -> tuple[str, ...]:
    """Splits the parameter list that starts at `begin`, after its opening parenthesis, at its commas."""
    parameters, depth, start = [], 0, begin
    for at in range(begin, len(text)):
        char = text[at]
        if char in "([{<":
            depth += 1
        elif char in ")]}>" and depth:
            depth -= 1
        elif char == "," and not depth:
            parameters.append(text[start:at])
            start = at + 1
        elif char == ")":
            parameters.append(text[start:at])
            break
    return tuple(parameters)


def _pointee(parameter: str) -> str | None:
    """Returns the dtype that a parameter points to; None if it is no pointer or the type is not compared."""
    declaration = parameter.partition("=")[0].replace("std::", " ")
    for mark in "*[":
        declaration = declaration.replace(mark, f" {mark} ")
    words = [word for word in declaration.split() if word not in _QUALIFIERS]
    if words.count("*") == 1 and "[" not in words:  # the name may be missing
        at = words.index("*")
        return _DTYPES.get(" ".join(words[:at])) if len(words) <= at + 2 else None
    if words.count("[") == 1 and "*" not in words:
        return _DTYPES.get(" ".join(words[: words.index("[") - 1]))
    return None
