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
from hearthd.device.cpu.toolchain import EXCHANGE, RUNTIME, find_toolchain

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
    """Builder of shared objects from the backend's own sources: a `Toolchain`, or a client of a broker."""

    def library(self, name: str, folder: Path, sources: Sequence[str], *options: str) -> Path:
        """Returns the path of the shared object. Raises Refusal."""
        ...


def library_path(name: str, maker: LibraryMaker) -> Path:
    """Returns the path of a library by the name under which `runtime`, `exchange` or `reduction` requests it.

    Raises Refusal.
    """
    dtype = name.removeprefix("reduce-")
    if name == "runtime":
        return runtime(maker)
    if name == "exchange":
        return _exchange_path(maker)
    if name != dtype and dtype in STORED:
        return _reduction_path(dtype, maker)
    raise Refusal(Reason.INTERNAL, f"The CPU backend has no library {name!r}.")


def runtime(toolchain: LibraryMaker) -> Path:
    """Returns the library that launches kernels, compiled if necessary."""
    sources = sorted(path.name for path in RUNTIME.glob("*.cpp"))
    # fiber.h pushes onto the stack in the middle of functions.
    options = ["-mno-red-zone"] if platform.machine() == "x86_64" else []
    return toolchain.library("runtime", RUNTIME, sources, "-ftls-model=initial-exec", *options)


def exchange(toolchain: LibraryMaker | None = None) -> ctypes.CDLL:
    """Loads the library that moves bytes between the ranks of a group."""
    return _load(_exchange_path(toolchain or find_toolchain()))


def _exchange_path(maker: LibraryMaker) -> Path:
    sources = sorted(path.name for path in EXCHANGE.glob("*.cpp") if path.name != _REDUCE)
    # The library copies whole blocks and waits, so more optimization would not make it faster.
    return maker.library("exchange", EXCHANGE, sources, "-O1")


class Arithmetic(NamedTuple):
    """Addresses of the functions that compute with numbers of one dtype."""

    reduce: int
    """reduce.h's `Reduce`, which combines the numbers of several ranks."""
    scale: int
    """reduce.h's `Scale`, which multiplies numbers by a factor."""


def reduction(dtype: str, toolchain: LibraryMaker | None = None) -> Arithmetic:
    """Returns the functions for numbers of the dtype, which are compiled if necessary."""
    library = _load(_reduction_path(dtype, toolchain or find_toolchain()))
    return Arithmetic(_address(library.hearth_reduce), _address(library.hearth_scale))


def _address(function: object) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert address is not None
    return address


def _reduction_path(dtype: str, maker: LibraryMaker) -> Path:
    return maker.library(f"reduce-{dtype}", EXCHANGE, [_REDUCE], f"-DHEARTH_DTYPE={STORED[dtype]}")


def _load(path: Path) -> ctypes.CDLL:
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
