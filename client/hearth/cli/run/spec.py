"""The kernel's arguments as `hearth run` takes them, in the kernel's order: parsed, and nothing else.

==================================  ====================================================================================
``f32=2.5``  ``int=1<<20``          a value: TYPE=VALUE
``in:data.npy``                     an array from a file, which the kernel reads
``inout:data.npy=result.npy``       the same, and what the kernel made of it goes to a file
``zeros:float32[1024]``             an array made here: zeros, ones, arange, random, full; ``in:`` may stand before it
``random:f32[64,64]:seed=1``        options behind it, see `GENERATORS`
``inout:ones:f32[1024]=y.npy``      the same, and what the kernel made of it goes to a file
``out:float32[1024]=y.npy``         an array that begins as zeros and goes to a file
==================================  ====================================================================================

Where no file is given for it (``out:float32[16]``, ``inout:data.npy``) a result is printed. TYPE is a name of NumPy's
(``float32``), of CUDA C++ (``float``, ``unsigned int``, ``size_t``; ``int`` has 32 bits) or a short one (``f32``).
Files end in ``.npy``, which is how a name with ``=`` or ``:`` in it is distinguished from the text around it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hearth.cli.run.numbers import TYPES, Number, SpecError, integer, near, number

Direction = Literal["in", "inout", "out"]

GENERATORS: Mapping[str, Mapping[str, Number | None]] = {
    "zeros": {},
    "ones": {},
    "arange": {"start": 0, "step": 1},
    "random": {"seed": 0, "low": None, "high": None},
    "full": {"value": None},
}
"""Generators of arrays, with the options of each and their defaults. ``random``: uniform in [low, high), for floats [0,
1) and for integers [0, 100) unless given; the same for the same seed."""

SUFFIX = ".npy"
MAX_AXES = 32
MAX_ELEMENTS = 2**48


@dataclass(frozen=True)
class Scalar:
    """A value, passed as it is."""

    dtype: str
    value: Number


@dataclass(frozen=True)
class FromFile:
    """An array in a ``.npy`` file."""

    path: str


@dataclass(frozen=True)
class Generated:
    """An array that is made here."""

    how: str
    dtype: str
    shape: tuple[int, ...]
    options: Mapping[str, Number] = field(default_factory=dict)


@dataclass(frozen=True)
class Array:
    """An array in the device's memory, and where what becomes of it goes."""

    direction: Direction
    source: FromFile | Generated
    result: str | None = None
    """A file; None: it is printed, where the direction has a result at all."""


Spec = Scalar | Array


def parse_all(texts: Sequence[str]) -> list[Spec]:
    """The arguments in order. Raises `SpecError` with all that is to be said."""
    found = []
    for place, text in enumerate(texts, 1):
        try:
            found.append(parse(text))
        except SpecError as error:
            raise SpecError(
                f"argument {place}, {text!r}, character {error.at + 1}: {error.what}; e.g. {error.example}", error.at
            ) from None
    _refuse_same_results(found)
    return found


def parse(text: str) -> Spec:
    """Parses one argument. Raises `SpecError`."""
    head, colon, rest = text.partition(":")
    if colon and head in ("in", "inout", "out"):
        return _array(head, rest, len(head) + 1)  # type: ignore[arg-type]
    if colon and head in GENERATORS:
        return _array("in", text, 0)
    name, equals, value = text.partition("=")
    if equals and name.strip() in TYPES:
        return Scalar(TYPES[name.strip()], number(TYPES[name.strip()], value, len(name) + 1))
    if equals and ":" not in name:
        raise SpecError(f"{name!r} is no type{near(name, TYPES)}")
    if text.endswith(SUFFIX):
        raise SpecError("say whether the file is read (in:), changed (inout:) or a result (out:TYPE[SHAPE]=)", 0, "in")
    if colon:
        known = (*GENERATORS, "in", "inout", "out")
        raise SpecError(f"{head!r} is none of in, inout, out, {', '.join(GENERATORS)}{near(head, known)}", 0, "arange")
    raise SpecError("this is neither TYPE=VALUE nor an array")


def _array(direction: Direction, text: str, at: int) -> Array:
    head, colon, _ = text.partition(":")
    if direction != "out" and colon and head in GENERATORS:
        return _made(direction, head, text, at)
    if direction == "out":
        if colon and head in GENERATORS:
            raise SpecError(f"a result begins as zeros; write inout:{text} to begin with something else", at, "out")
        dtype, shape, after = _typed(text, at, "out")
        return Array("out", Generated("zeros", dtype, shape), _result(text, after, at, "out"))
    return _file(direction, text, at)


def _made(direction: Direction, how: str, text: str, at: int) -> Array:
    """``arange:float32[16]:step=2=result.npy``"""
    start = len(how) + 1
    dtype, shape, after = _typed(text[start:], at + start, how)
    after += start
    options: dict[str, Number] = {}
    while text[after : after + 1] == ":":
        after = _option(how, dtype, text, after + 1, at, options)
    if how == "full" and "value" not in options:
        raise SpecError("full wants a value: add :value=3", at + after, how)
    result = _result(text, after, at, "inout" if direction == "inout" else how)
    if result is not None and direction == "in":
        raise SpecError(f"what is only read has no result: write inout:{text}", at + after, "inout")
    return Array(direction, Generated(how, dtype, shape, options), result)


def _option(how: str, dtype: str, text: str, start: int, at: int, options: dict[str, Number]) -> int:
    """Reads ``name=value``; where it ends."""
    end = min((found for found in (text.find(":", start), text.find("=", text.find("=", start) + 1)) if found > 0),
              default=len(text))  # fmt: skip
    name, equals, value = text[start:end].partition("=")
    known = GENERATORS[how]
    if name not in known:
        has = f"its options are {', '.join(known)}" if known else "it has no options"
        raise SpecError(f"{name!r} is no option of {how}: {has}", at + start, how)
    if not equals or not value:
        raise SpecError(f"the option {name} wants a value", at + start, how)
    if name in options:
        raise SpecError(f"the option {name} is given twice", at + start, how)
    options[name] = number("uint64" if name == "seed" else dtype, value, at + start + len(name) + 1, how)
    return end


def _typed(text: str, at: int, kind: str) -> tuple[str, tuple[int, ...], int]:
    """``float32[1024,1024]``: type, shape, and where it ends."""
    opening, closing = text.find("["), text.find("]")
    name = text[:opening] if opening >= 0 else re.split(r"[=:]", text)[0]
    if name.strip() not in TYPES:
        raise SpecError(f"{name!r} is no type{near(name, TYPES)}", at, kind)
    if opening < 0 or closing < opening:
        raise SpecError("the shape is missing, in brackets behind the type", at + len(name), kind)
    inside = text[opening + 1 : closing]
    shape: list[int] = []
    place = at + opening + 1
    for part in inside.split(",") if inside.strip() else []:
        try:
            axis = integer(part)
        except ValueError:
            raise SpecError(f"{part!r} is no whole number of elements", place, kind) from None
        if axis < 0:
            raise SpecError(f"an axis of {axis} elements cannot be", place, kind)
        shape.append(axis)
        place += len(part) + 1
    if len(shape) > MAX_AXES:
        raise SpecError(f"{len(shape)} axes are more than the {MAX_AXES} that NumPy has", at + opening, kind)
    if math.prod(shape) > MAX_ELEMENTS:
        raise SpecError(f"{math.prod(shape)} elements are more than any device holds", at + opening, kind)
    return TYPES[name.strip()], tuple(shape), closing + 1


def _result(text: str, after: int, at: int, kind: str) -> str | None:
    rest = text[after:]
    if not rest:
        return None
    if not rest.startswith("="):
        raise SpecError(f"{rest!r} should not be there", at + after, kind)
    return _npy(rest[1:], at + after + 1, kind)


def _file(direction: Direction, text: str, at: int) -> Array:
    """``data.npy`` or ``data.npy=result.npy``"""
    if not text:
        raise SpecError("the file's name is missing", at, direction)
    source, found, result = text.partition(f"{SUFFIX}=")
    if found and direction == "in":
        raise SpecError(f"what is only read has no result: write inout:{text}", at + len(source) + 4, "inout")
    path = _npy(source + SUFFIX if found else text, at, direction)
    return Array(direction, FromFile(path), _npy(result, at + len(source) + 5, direction) if found else None)


def _npy(path: str, at: int, kind: str) -> str:
    if path.endswith(SUFFIX) and len(path) > len(SUFFIX) and "\0" not in path:
        return path
    what = "the file's name is missing" if not path else f"{path!r} is no .npy file: its name has to end so"
    raise SpecError(what, at, kind)


def _refuse_same_results(specs: Sequence[Spec]) -> None:
    seen: dict[str, int] = {}
    for place, spec in enumerate(specs, 1):
        if isinstance(spec, Array) and spec.result is not None:
            before = seen.setdefault(spec.result, place)
            if before != place:
                raise SpecError(f"arguments {before} and {place} both go to {spec.result!r}: name a file for each")
