"""Libraries of the backend: each is compiled at its first use, once for a machine.

They are separate libraries because different operations wait for them: a kernel launch for the runtime, a group for the
exchange of bytes, a reduction for the arithmetic of its dtype.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from hearth_proto.reasons import Reason, Refusal

RUNTIME = Path(__file__).parent / "runtime"
EXCHANGE = Path(__file__).parent / "exchange"

KINDS = (
    "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "send",
    "recv", "barrier",
)  # fmt: skip

STORED = {
    "int8": "int8_t", "int16": "int16_t", "int32": "int32_t", "int64": "int64_t",
    "uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t", "uint64": "uint64_t",
    "float16": "_Float16", "bfloat16": "Bf16", "float32": "float", "float64": "double",
    "float8_e4m3fn": "E4m3fn", "float8_e5m2": "E5m2",
}  # fmt: skip
"""The dtypes that can be reduced, with their C++ types."""

DTYPES = tuple(STORED)
OPS = ("sum", "mean", "min", "max", "prod", "premul_sum")
"""Reductions. `KINDS`, `DTYPES` and `OPS` have the order of exchange/segment.h and exchange/reduce.h."""

_REDUCE = "reduce.cpp"
_lock = threading.Lock()
_loaded: dict[Path, ctypes.CDLL] = {}


class LibraryMaker(Protocol):
    """Builder of the backend's libraries: a `Toolchain`, or a client of a broker."""

    def library(self, name: str) -> Path:
        """Returns the path of a library by its name, see `recipe`; compiled if necessary. Raises Refusal."""
        ...


class Recipe(NamedTuple):
    """Inputs of a library's compilation: a directory, the names of sources in it, and options of the compiler."""

    folder: Path
    sources: Sequence[str]
    options: Sequence[str]


def recipe(name: str) -> Recipe:
    """Returns what a library is compiled from, by its name: "runtime", "exchange", or "reduce-" and a dtype.

    Raises Refusal.
    """
    if name == "runtime":  # launches kernels; see `hearthd.device.cpu.module.load_runtime`
        # fiber.h pushes onto the stack in the middle of functions.
        options = ["-mno-red-zone"] if platform.machine() == "x86_64" else []
        return Recipe(RUNTIME, _sources(RUNTIME), ["-ftls-model=initial-exec", *options])
    if name == "exchange":  # moves bytes between the ranks of a group
        # The library copies whole blocks and waits, so more optimization would not make it faster.
        return Recipe(EXCHANGE, [source for source in _sources(EXCHANGE) if source != _REDUCE], ["-O1"])
    prefix, _, dtype = name.partition("-")
    if prefix == "reduce" and dtype in STORED:
        return Recipe(EXCHANGE, [_REDUCE], [f"-DHEARTH_DTYPE={STORED[dtype]}"])
    raise Refusal(Reason.INTERNAL, f"The CPU backend has no library {name!r}.")


def _sources(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.cpp"))


class Arithmetic(NamedTuple):
    """Addresses of the functions that compute with numbers of one dtype."""

    reduce: int
    """reduce.h's `Reduce`, which combines the numbers of several ranks."""
    scale: int
    """reduce.h's `Scale`, which multiplies numbers by a factor."""


def reduction(dtype: str, maker: LibraryMaker) -> Arithmetic:
    """Returns the functions for numbers of the dtype, which are compiled if necessary."""
    library = load(f"reduce-{dtype}", maker)
    return Arithmetic(_address(library.hearth_reduce), _address(library.hearth_scale))


def _address(function: object) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert address is not None
    return address


def load(name: str, maker: LibraryMaker) -> ctypes.CDLL:
    """Returns a library of `recipe`, except the runtime, loaded into this process. Raises Refusal."""
    path = maker.library(name)
    with _lock:
        library = _loaded.get(path)
        if library is None:
            try:
                library = _loaded[path] = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
            except OSError as error:
                raise Refusal(
                    Reason.INTERNAL,
                    f"The CPU backend's own library {path.name} cannot be loaded: {error}.",
                    fix=f"Remove {path.parent}: it is compiled again when it is needed.",
                ) from None
        return library
