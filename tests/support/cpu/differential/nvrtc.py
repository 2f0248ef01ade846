"""NVRTC through ctypes, from the package `nvidia-cuda-nvrtc`: compiles without a GPU and without a driver."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.cpu.differential.kernels import Kernel
    from tests.support.cpu.differential.programs import Program

PACKAGE = "nvidia-cuda-nvrtc"
GENERIC_LAMBDAS = "-default-device"
"""The option without which NVRTC 12 treats each generic lambda of a device function as a host function."""


def _package_folders() -> list[Path]:
    """Returns the folders of the packages in the namespace `nvidia`."""
    spec = importlib.util.find_spec("nvidia")
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []


@functools.cache
def library() -> ctypes.CDLL | None:
    """Loads the newest NVRTC of the installed packages; returns None if no package contains one."""
    found = [path for place in _package_folders() for path in place.glob("*/lib/libnvrtc.so.*")]
    for path in sorted(found, key=lambda path: int(path.name.rpartition(".")[2]), reverse=True):
        for part in sorted(path.parent.glob("libnvrtc-builtins.so.*")):
            ctypes.CDLL(str(part), ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(str(path))
    return None


@functools.cache
def version() -> tuple[int, int]:
    """Returns NVRTC's version as (major, minor)."""
    nvrtc, major, minor = library(), ctypes.c_int(), ctypes.c_int()
    assert nvrtc is not None
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


@functools.cache
def toolkit() -> tuple[str, ...]:
    """Returns the folders of the toolkit's headers, for sources that include them; empty if there are none.

    The headers must have NVRTC's major version: headers of another version need not compile.
    """
    major, _ = version()
    folders = [place / part / "include" for place in _package_folders() for part in (f"cu{major}", "cuda_runtime")]
    folders += [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"]
    folders += sorted(Path("/usr/local").glob(f"cuda-{major}*/include"), reverse=True)
    for folder in folders:
        if _is_of(folder, major) and (folder / "cooperative_groups.h").is_file():
            parts = [folder, *(more for more in (folder / "cccl", *_cccl()) if (more / "cuda" / "std").is_dir())]
            return tuple(str(part) for part in parts)
    return ()


def _cccl() -> list[Path]:
    return [place / part / "include" for place in _package_folders() for part in ("cuda_cccl", "cu13/include/cccl")]


def _is_of(folder: Path, major: int) -> bool:
    header = folder / "cuda.h"
    return header.is_file() and f"#define CUDA_VERSION {major}" in header.read_text(errors="replace")


def compile_error(program: Program, kernels: Collection[Kernel], architecture: str) -> str:
    """Returns the error message of NVRTC for these kernels of a program; empty if they compile."""
    options = [f"--gpu-architecture={architecture}", "--std=c++17", *(f"-I{folder}" for folder in toolkit())]
    if version() < (13, 0):
        options.append(GENERIC_LAMBDAS)
    return compile_source(program.source(kernels), options, program.name_expressions(kernels), program.headers)


def compile_source(
    source: str, options: Sequence[str], names: Sequence[str] = (), headers: Mapping[str, str] | None = None
) -> str:
    """Returns the error message of NVRTC for a source; empty if it compiles and defines all the names."""
    nvrtc, given = library(), dict(headers or {})
    assert nvrtc is not None
    program, count = ctypes.c_void_p(), len(given)
    texts = (ctypes.c_char_p * count)(*(text.encode() for text in given.values()))
    files = (ctypes.c_char_p * count)(*(name.encode() for name in given))
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", count, texts, files)
    try:
        for name in names:
            nvrtc.nvrtcAddNameExpression(program, name.encode())
        arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if nvrtc.nvrtcCompileProgram(program, len(options), arguments):
            size = ctypes.c_size_t()
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(max(1, size.value))
            nvrtc.nvrtcGetProgramLog(program, log)
            return log.value.decode(errors="replace") or "NVRTC failed without a log"
        lowered = ctypes.c_char_p()
        missing = [name for name in names if nvrtc.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(lowered))]
        return f"NVRTC knows no {', '.join(missing)}" if missing else ""
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
