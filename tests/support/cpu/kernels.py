"""Compiling and launching kernels without a daemon, with a parameter block laid out by C's rules."""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hearthd.device.backend.compiler import Image, Source
from hearthd.device.cpu.compiler import CpuCompiler
from hearthd.device.cpu.module import CpuModule
from hearthd.device.cpu.toolchain import Toolchain, find_toolchain


def pack(*values: Any) -> bytes:
    """Returns a parameter block: arrays become pointers; NumPy scalars and structured scalars are copied, with natural
    alignment."""
    block = bytearray()
    for value in values:
        if isinstance(value, np.ndarray) and value.ndim:
            data, align = struct.pack("=Q", value.ctypes.data), 8
        elif isinstance(value, tuple):  # (bytes, alignment) of a struct
            data, align = value
        else:
            scalar = np.asarray(value)
            data, align = scalar.tobytes(), scalar.dtype.alignment
        block += b"\0" * (-len(block) % align) + data
    return bytes(block)


def compile_image(
    toolchain: Toolchain,
    source: str,
    options: Sequence[str] = (),
    names: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
) -> Image:
    """Compiles a source with this toolchain."""
    job = Source(source, tuple(options), tuple(names), tuple((headers or {}).items()))
    return CpuCompiler(toolchain=toolchain).compile(job)


def compile_source(
    toolchain: Toolchain,
    source: str,
    options: Sequence[str] = (),
    names: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Returns the code of the image that `compile_image` makes."""
    return compile_image(toolchain, source, options, names, headers).code


class Kernels:
    """A compiled source whose kernels can be called with NumPy arrays."""

    def __init__(self, source: str, options: Sequence[str] = (), names: Sequence[str] = (), **headers: str) -> None:
        self.image = compile_source(find_toolchain(), source, options, names, headers)
        self.module = CpuModule(self.image, find_toolchain())

    def __call__(
        self,
        name: str,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        *args: Any,
        shared: int = 0,
        cooperative: bool = False,
    ) -> None:
        self.module.function(name).launch(_three(grid), _three(block), shared, pack(*args), cooperative)


def died_saying(image: bytes, name: str, block: int, folder: Path) -> str:
    """Returns the standard error of a process that aborts in one block of a kernel; the kernel's arguments are zeroed
    arrays."""
    (folder / "module.so").write_bytes(image)
    script = f"""
    import pathlib, struct, numpy as np
    from hearthd.device.cpu.module import CpuModule
    from hearthd.device.cpu.toolchain import find_toolchain
    function = CpuModule(pathlib.Path({str(folder / "module.so")!r}).read_bytes(), find_toolchain()).function({name!r})
    room = np.zeros(1 << 16, np.uint64)
    function.launch((1, 1, 1), ({block}, 1, 1), 0, struct.pack("=8Q", *[room.ctypes.data] * 8), False)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGABRT
    return done.stderr


def _three(value: int | tuple[int, ...]) -> tuple[int, int, int]:
    sizes = (value,) if isinstance(value, int) else value
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z
