"""Type names and values as people write them, from which the arguments of `hearth run` are made."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from hearth.keywords import closest

Number = bool | int | float | complex

NUMPY_TYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip
_SHORT = {
    f"{letter}{bits}": f"{name}{bits}"
    for letter, name, widths in (
        ("i", "int", (8, 16, 32, 64)),
        ("u", "uint", (8, 16, 32, 64)),
        ("f", "float", (16, 32, 64)),
        ("c", "complex", (64, 128)),
    )
    for bits in widths
}
_CUDA = {
    "half": "float16", "float": "float32", "double": "float64", "char": "int8", "signed char": "int8",
    "unsigned char": "uint8", "uchar": "uint8", "short": "int16", "unsigned short": "uint16", "ushort": "uint16",
    "int": "int32", "unsigned": "uint32", "unsigned int": "uint32", "uint": "uint32", "long": "int64",
    "unsigned long": "uint64", "long long": "int64", "unsigned long long": "uint64", "size_t": "uint64",
    "ptrdiff_t": "int64", "cuComplex": "complex64", "cuDoubleComplex": "complex128",
    **{f"{sign}int{bits}_t": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
TYPES: Mapping[str, str] = {name: name for name in NUMPY_TYPES} | _SHORT | _CUDA
"""NumPy's name of each type, by every name that is accepted for it."""

_EXAMPLES = {
    "in": "in:data.npy",
    "inout": "inout:data.npy=result.npy",
    "out": "out:float32[1024]=result.npy",
    "zeros": "zeros:float32[1024]",
    "ones": "ones:float32[1024]",
    "arange": "arange:float32[1048576]",
    "random": "random:float32[1024,1024]:seed=1",
    "full": "full:float32[1024]:value=3",
    "": "f32=2.5",
}
_SHIFTED = re.compile(r"(\d+)\s*(<<|\*\*)\s*(\d+)", re.ASCII)
_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|\d[\d_]*)", re.ASCII)
_BITS = 64
_LARGEST = {"float16": 65504.0, "float32": 3.4028234663852886e38, "complex64": 3.4028234663852886e38}
"""Largest finite values of the types that have a smaller range than Python's numbers."""


class SpecError(ValueError):
    """Error in an argument: the problem, its position, and a correct example, in one line."""

    def __init__(self, problem: str, at: int = 0, kind: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.at = at
        """Position in the text, from 0."""
        self.kind = kind

    @property
    def example(self) -> str:
        """Correct example of the same kind of argument."""
        return _EXAMPLES[self.kind]


def number(dtype: str, text: str, at: int = 0, kind: str = "") -> Number:
    """Parses a value of the type `dtype` and checks its range. Raises `SpecError`."""
    text = text.strip()
    try:
        value = _parse(dtype, text)
    except (KeyError, OverflowError, ValueError):
        form = {"b": "true or false", "c": "a complex number such as 1+2j"}.get(dtype[0], "a number")
        raise SpecError(
            f"{text!r} is not a valid {dtype}: use {'an integer' if 'int' in dtype else form}", at, kind
        ) from None
    if "int" in dtype:
        bits, signed = int(dtype.lstrip("uint")), dtype.startswith("int")
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        if not low <= value.real <= high:
            raise SpecError(f"{text} is not between {low} and {high}, the range of {dtype}", at, kind)
    maximum = _LARGEST.get(dtype, math.inf)
    for part in (value.real, value.imag):
        if math.isfinite(part) and abs(part) > maximum:
            raise SpecError(f"{part} is beyond {maximum}, the maximum of {dtype}", at, kind)
    return value


def _parse(dtype: str, text: str) -> Number:
    """Parses a value of the type `dtype`, of any size. Raises `KeyError`, `OverflowError` or `ValueError`."""
    if dtype == "bool":
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    if "int" in dtype:
        return integer(text)
    if dtype.startswith("float"):
        return float.fromhex(text) if "0x" in text.lower() else float(text)
    return complex(text.replace(" ", ""))


def integer(text: str) -> int:
    """Parses an integer: ``1024``, ``0x400``, ``1_024``, ``1<<10``, ``2**10``. Raises `ValueError`."""
    text = text.strip()
    if (match := _SHIFTED.fullmatch(text)) is not None and len(text) <= _BITS:
        base, operator, exponent = int(match[1]), match[2], int(match[3])
        if exponent > _BITS or base >= 1 << _BITS:
            raise ValueError(text)
        return base << exponent if operator == "<<" else base**exponent
    if _INTEGER.fullmatch(text) is None or len(text) > 2 * _BITS:
        raise ValueError(text)
    digits = text.lstrip("+-").lower()
    return int(text, 0 if digits[:2] in ("0x", "0b", "0o") else 10)


def dimensions(text: str) -> tuple[int, int, int]:
    """Parses a grid or a block: ``1024``, ``32,32`` or ``8x8x4``.

    Raises `ValueError`, whose text describes the problem.
    """
    parts = re.split(r"[,x]", text) if not text.strip().lower().startswith("0x") else text.split(",")
    try:
        sizes = [integer(part) for part in parts]
    except ValueError:
        sizes = []
    if not 1 <= len(sizes) <= 3 or any(not 0 < size < 1 << 32 for size in sizes):
        raise ValueError(
            f"{text!r} is not a size in x, y and z: use one to three integers of at least 1, e.g. 1024 or 32,32"
        )
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def near(name: str, names: Mapping[str, object] | Sequence[str]) -> str:
    """Returns the suggestion of a similar name, for an error message; empty: there is none."""
    close = closest(name.strip(), names)
    return f" (did you mean {close!r}?)" if close else ""
