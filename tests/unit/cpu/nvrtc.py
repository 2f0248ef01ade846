"""NVRTC as a second judge of the tests' CUDA programs: it compiles without a GPU, where its package is installed."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

_PATTERNS = ("nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12")


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library of the package `nvidia-cuda-nvrtc`, or None."""
    for place in sys.path:
        for pattern in _PATTERNS:
            path = Path(place) / pattern
            if path.is_file():
                return ctypes.CDLL(str(path))
    return None


def compile_log(source: str, options: Sequence[str] = ()) -> tuple[bool, str]:
    """Whether NVRTC accepts `source`, and its log."""
    nvrtc = library()
    assert nvrtc is not None
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = nvrtc.nvrtcCompileProgram(program, len(options), arguments)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return status == 0, log.value.decode()
