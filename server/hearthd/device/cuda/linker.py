"""Linker of CUDA code with nvJitLink: CUBIN, PTX, fatbin, LTO-IR, objects and archives to one CUBIN.

Runs in compile workers: needs no context and no driver.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.compiler import image_headers, symbols
from hearthd.device.compiler.options import CompileOptions

_EXHAUSTED = re.compile(r"out of memory|memory allocation failure", re.IGNORECASE)
_FAST_MATH = {"ftz": "1", "prec-div": "0", "prec-sqrt": "0", "fma": "1"}
"""Options of link-time optimization that -use_fast_math implies."""


class Linker:
    """Links code for one device."""

    def __init__(self, compute_capability: tuple[int, int]) -> None:
        major, minor = compute_capability
        self._target = f"sm_{10 * major + minor}{'a' if major >= 9 else ''}"

    def identity(self) -> bytes:
        """Returns the version of nvJitLink, and the target. Raises Refusal(NO_COMPILER) if it is not installed."""
        major, minor = self._library.version()
        return f"nvJitLink {major}.{minor}\n{self._target}".encode()

    def link(self, inputs: Sequence[bytes], options: CompileOptions) -> bytes:
        """Returns the CUBIN of all inputs, which the log names "input 0", "input 1", ...

        Raises Refusal(COMPILE_FAILED) with the log, Refusal(NO_COMPILER).
        """
        twice = symbols.duplicates(inputs)
        if twice:
            lines = [f"error: {name!r} is defined in input {', input '.join(map(str, at))}" for name, at in twice]
            raise _failed(f"{lines[0].removeprefix('error: ')}", "\n".join(lines))
        lto = options.optimized_by_linker or any(code.startswith(image_headers.LTO_IR_MAGIC) for code in inputs)
        return self._link(inputs, [f"-arch={self._target}", *_linker_options(options, lto)])

    @functools.cached_property
    def _library(self) -> Any:
        """The binding of nvJitLink. Raises Refusal(NO_COMPILER)."""
        try:
            from cuda.bindings import nvjitlink

            nvjitlink.version()
        except Exception as error:  # not installed, or older than the binding
            raise Refusal(
                Reason.NO_COMPILER,
                f"Modules cannot be linked here: nvJitLink is not installed ({error}).",
                fix="install nvidia-nvjitlink (CUDA 12: nvidia-nvjitlink-cu12) in the daemon's environment, or send "
                "one linked module",
            ) from error
        return nvjitlink

    def _link(self, inputs: Sequence[bytes], options: list[str]) -> bytes:
        nvjitlink = self._library
        try:
            handle = nvjitlink.create(len(options), options)
        except nvjitlink.nvJitLinkError as error:
            raise _failed(f"nvJitLink refuses {' '.join(options)}: {error}", str(error)) from error
        try:
            for index, code in enumerate(inputs):
                data = code.rstrip(b"\0") if is_ptx(code) else code
                nvjitlink.add_data(handle, int(self._kind(code)), data, len(data), f"input {index}")
            nvjitlink.complete(handle)
            cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
            nvjitlink.get_linked_cubin(handle, cubin)
            return bytes(cubin)
        except nvjitlink.nvJitLinkError as error:
            log = bytearray(max(2, nvjitlink.get_error_log_size(handle)))
            nvjitlink.get_error_log(handle, log)
            text = bytes(log).partition(b"\0")[0].decode(errors="replace").strip() or str(error)
            if _EXHAUSTED.search(text):
                raise MemoryError from error
            raise _failed(_first_error(text), text) from error
        finally:
            nvjitlink.destroy(handle)

    def _kind(self, code: bytes) -> Any:
        kinds = self._library.InputType
        if code.startswith(image_headers.ELF_MAGIC):
            is_cubin = int.from_bytes(code[18:20], "little") == image_headers.EM_CUDA
            return kinds.CUBIN if is_cubin else kinds.OBJECT
        if code.startswith(image_headers.FATBIN_MAGIC):
            return kinds.FATBIN
        if code.startswith(image_headers.LTO_IR_MAGIC):
            return kinds.LTOIR
        return kinds.LIBRARY if code.startswith(image_headers.ARCHIVE_MAGIC) else kinds.PTX


def is_ptx(code: bytes) -> bool:
    """True if the code has none of the binary formats."""
    return not code.startswith(
        (
            image_headers.ELF_MAGIC,
            image_headers.FATBIN_MAGIC,
            image_headers.FATBIN_WRAPPER_MAGIC,
            image_headers.LTO_IR_MAGIC,
            image_headers.ARCHIVE_MAGIC,
        )
    )


def _linker_options(options: CompileOptions, lto: bool) -> list[str]:
    """Returns the options of the sources that the linker needs as well."""
    found = []
    if options.has("maxrregcount"):
        found.append(f"-maxrregcount={options.last('maxrregcount')}")
    if options.has("device-debug"):
        found.append("-g")
    if options.has("generate-line-info"):
        found.append("-lineinfo")
    if not lto:
        return found
    found.append("-lto")
    settings = dict(_FAST_MATH) if options.has("use_fast_math") else {}
    for name in ("ftz", "prec-div", "prec-sqrt", "fmad"):
        if options.has(name):
            settings["fma" if name == "fmad" else name] = str(int(options.last(name) == "true"))
    return found + [f"-{name}={value}" for name, value in settings.items()]


def _first_error(log: str) -> str:
    """Returns the first line of the log that describes an error."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if re.search("error|fatal", line, re.IGNORECASE)), lines[0] if lines else "")


def _failed(problem: str, log: str) -> Refusal:
    return Refusal(
        Reason.COMPILE_FAILED,
        f"The inputs cannot be linked: {problem}.",
        fix="define each function and variable in one input, declare it `extern` in the others, and send all inputs; "
        'the complete log is in details["log"]',
        details={"log": log},
    )
