"""Assembler from PTX to CUBIN with nvJitLink, or else ptxas, and linker with nvJitLink.

Runs in compile workers: needs no context and no driver. If neither assembler is available, or the tool does not know a
PTX version or architecture that the driver may know, the driver compiles the PTX while loading it, on the device-handle
thread. `Refusal(NO_COMPILER)` reports that case.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Assembly, Image
from hearthd.device.compiler import image_headers, symbols
from hearthd.device.compiler.options import CompileOptions
from hearthd.device.compiler.parameter_kinds import parameter_kinds

_UNKNOWN_VERSION = re.compile(r"Unsupported \.version (\d+\.\d+); current version is '(\d+\.\d+)'")
_RELEASE = re.compile(r"release (\d+)\.(\d+)")
_FAST_MATH = {"ftz": "1", "prec-div": "0", "prec-sqrt": "0", "fma": "1"}
"""Options of link-time optimization that -use_fast_math implies."""
_EXHAUSTED = re.compile(r"out of memory|memory allocation failure", re.IGNORECASE)


class _Tool(NamedTuple):
    """An assembler: its name, its version, and a function that assembles PTX for an architecture and raises _Refused.

    `takes_fatbins`: it accepts fatbins.
    """

    name: str
    version: tuple[int, int]
    run: Callable[[bytes, str], bytes]
    takes_fatbins: bool


class _Refused(Exception):
    """The tool refused the code; the exception's text is the tool's log."""


class PtxAssembler:
    """Assembles PTX for one device.

    `driver` is the driver's CUDA version, which may support newer PTX than the tool.
    """

    def __init__(self, compute_capability: tuple[int, int], driver: tuple[int, int]) -> None:
        self._target = _architecture(compute_capability)
        self._driver = driver

    def identity(self) -> bytes:
        """Returns the identity of tool and target. Raises Refusal(NO_COMPILER)."""
        tool = self._required_tool
        return f"{tool.name} {tool.version[0]}.{tool.version[1]}\n{self._target}".encode()

    @staticmethod
    def files() -> list[str]:
        """Returns the path of the program that the assembler may run; empty if ptxas is not installed."""
        path = _find_ptxas()
        return [] if path is None else [path]

    def assemble(self, assembly: Assembly) -> Image:
        """Assembles the code. Raises Refusal(MODULE_INVALID) with the log, Refusal(NO_COMPILER)."""
        tool = self._required_tool
        fatbin = assembly.code.startswith(image_headers.FATBIN_MAGIC)
        if fatbin and not tool.takes_fatbins:
            raise _unavailable(f"{tool.name} takes no fatbin")
        try:
            code = tool.run(assembly.code.rstrip(b"\0") if not fatbin else assembly.code, self._target)
        except _Refused as error:
            raise self._refusal(tool, str(error)) from error
        if fatbin and b".text." not in code:
            raise _unavailable(f"{tool.name} finds no code in the fatbin")
        return Image(code=code, kinds={} if fatbin else parameter_kinds(assembly.code))

    @property
    def _required_tool(self) -> _Tool:
        """The tool to use. Raises Refusal(NO_COMPILER) if none is installed."""
        if self._tool is None:
            raise _unavailable("neither nvJitLink nor ptxas is installed")
        return self._tool

    @functools.cached_property
    def _tool(self) -> _Tool | None:
        return _find_tool()

    def _refusal(self, tool: _Tool, log: str) -> Refusal:
        if _EXHAUSTED.search(log):
            raise MemoryError
        version = _UNKNOWN_VERSION.search(log)
        if version is not None and self._driver > tool.version:
            return _unavailable(f"{tool.name} knows PTX up to {version[2]}, and the driver is newer")
        if "NRECOGNIZED_ARCH" in log or "not defined for option 'gpu-name'" in log:
            return _unavailable(f"{tool.name} {tool.version[0]}.{tool.version[1]} does not know {self._target}")
        problem = f"PTX {version[1]} was sent; the newest known here is {version[2]}" if version else _first_error(log)
        return Refusal(
            Reason.MODULE_INVALID,
            f"The PTX cannot be assembled for {self._target}: {problem}.",
            fix="compile it with a toolkit that is no newer, for this device's architecture or an older one"
            if version
            else 'correct the PTX; the complete log is in details["log"]',
            details={"log": log, "device": self._target}
            | ({"requested": version[1], "allowed": version[2]} if version else {}),
        )


class Linker:
    """Links CUBIN, PTX, fatbin, LTO-IR, objects and archives to one CUBIN for one device."""

    def __init__(self, compute_capability: tuple[int, int]) -> None:
        self._target = _architecture(compute_capability)

    def identity(self) -> bytes:
        """Returns the version of nvJitLink, and the target. Raises Refusal(NO_COMPILER) if it is not installed."""
        major, minor = self._version
        return f"nvJitLink {major}.{minor}\n{self._target}".encode()

    def link(self, inputs: Sequence[bytes], options: CompileOptions) -> bytes:
        """Returns the CUBIN of all inputs, which the log names "input 0", "input 1", ...

        Raises Refusal(COMPILE_FAILED) with the log, Refusal(NO_COMPILER).
        """
        _ = self._version  # raises if nvJitLink is not installed
        twice = symbols.duplicates(inputs)
        if twice:
            lines = [f"{name!r} is defined in input {', input '.join(map(str, at))}" for name, at in twice]
            raise _link_failed(lines[0], "\n".join(f"error: {line}" for line in lines))
        lto = options.optimized_by_linker or any(code.startswith(image_headers.LTO_IR_MAGIC) for code in inputs)
        named = [(f"input {index}", code.rstrip(b"\0") if is_ptx(code) else code) for index, code in enumerate(inputs)]
        try:
            return _run_nvjitlink(named, [f"-arch={self._target}", *_linker_options(options, lto)])
        except _Refused as error:
            log = str(error)
            if _EXHAUSTED.search(log):
                raise MemoryError from error
            raise _link_failed(_first_error(log), log) from error

    @functools.cached_property
    def _version(self) -> tuple[int, int]:
        """The version of nvJitLink. Raises Refusal(NO_COMPILER)."""
        try:
            from cuda.bindings import nvjitlink

            return tuple(nvjitlink.version())
        except Exception as error:  # not installed, or older than the binding
            raise Refusal(
                Reason.NO_COMPILER,
                f"Modules cannot be linked here: nvJitLink is not installed ({error}).",
                fix="install nvidia-nvjitlink (CUDA 12: nvidia-nvjitlink-cu12) in the daemon's environment, or send "
                "one linked module",
            ) from error


def _architecture(compute_capability: tuple[int, int]) -> str:
    major, minor = compute_capability
    return f"sm_{10 * major + minor}{'a' if major >= 9 else ''}"


def _find_tool() -> _Tool | None:
    """Returns the tool to use: nvJitLink if it is installed, because it needs no files for a job, or else ptxas.

    None if neither is installed.
    """
    try:
        from cuda.bindings import nvjitlink

        return _Tool("nvJitLink", tuple(nvjitlink.version()), _link, True)
    except Exception:  # not installed, or older than the binding
        pass
    path = _find_ptxas()
    if path is None:
        return None
    try:
        output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    release = _RELEASE.search(output)
    version = (int(release[1]), int(release[2])) if release else (0, 0)
    return _Tool(f"ptxas {path}", version, functools.partial(_run_ptxas, path), False)


def _find_ptxas() -> str | None:
    """Returns the path of the toolkit's ptxas, or of that in the package nvidia-cuda-nvcc; None if there is none."""
    spec = importlib.util.find_spec("nvidia")
    for directory in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(directory).glob("*/bin/ptxas")):
            return str(path)
    program = shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")
    return str(Path(program).resolve()) if program else None


def _link(code: bytes, target: str) -> bytes:
    return _run_nvjitlink([("module", code)], [f"-arch={target}"])


def _run_nvjitlink(inputs: Sequence[tuple[str, bytes]], options: list[str]) -> bytes:
    """Links inputs, each with its name in the log, to a CUBIN. Raises _Refused."""
    from cuda.bindings import nvjitlink

    try:
        handle = nvjitlink.create(len(options), options)
    except nvjitlink.nvJitLinkError as error:
        raise _Refused(str(error)) from error
    try:
        for name, code in inputs:
            nvjitlink.add_data(handle, int(_kind(code)), code, len(code), name)
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        return bytes(cubin)
    except nvjitlink.nvJitLinkError as error:
        log = bytearray(max(2, nvjitlink.get_error_log_size(handle)))
        nvjitlink.get_error_log(handle, log)
        text = bytes(log).partition(b"\0")[0].decode(errors="replace").strip()
        raise _Refused(text or str(error)) from error
    finally:
        nvjitlink.destroy(handle)


def _kind(code: bytes) -> Any:
    """Returns nvJitLink's kind of the input, determined by its first bytes."""
    from cuda.bindings import nvjitlink

    kinds = nvjitlink.InputType
    if code.startswith(image_headers.ELF_MAGIC):
        is_cubin = int.from_bytes(code[18:20], "little") == image_headers.EM_CUDA
        return kinds.CUBIN if is_cubin else kinds.OBJECT
    if code.startswith(image_headers.FATBIN_MAGIC):
        return kinds.FATBIN
    if code.startswith(image_headers.LTO_IR_MAGIC):
        return kinds.LTOIR
    return kinds.LIBRARY if code.startswith(image_headers.ARCHIVE_MAGIC) else kinds.PTX


def _run_ptxas(path: str, code: bytes, target: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="ptxas-") as name:
        source, cubin = Path(name) / "module.ptx", Path(name) / "module.cubin"
        source.write_bytes(code)
        command = [path, f"-arch={target}", "-o", str(cubin), str(source)]
        completed = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if completed.returncode != 0:
            log = (completed.stderr + completed.stdout).replace(f"{name}/", "").strip()
            raise _Refused(log or f"ptxas ended with status {completed.returncode}")
        return cubin.read_bytes()


def is_ptx(code: bytes) -> bool:
    """True if the code has none of the binary formats."""
    return not code.startswith(image_headers.BINARY_MAGICS)


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
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    first = next(
        (line for line in lines if "error" in line.lower() or "fatal" in line), lines[0] if lines else "no reason"
    )
    return first.rstrip(".")


def _unavailable(reason: str) -> Refusal:
    return Refusal(Reason.NO_COMPILER, f"PTX is left to the driver: {reason}.", fix="install nvidia-nvjitlink")


def _link_failed(problem: str, log: str) -> Refusal:
    return Refusal(
        Reason.COMPILE_FAILED,
        f"The inputs cannot be linked: {problem}.",
        fix="define each function and variable in one input, declare it `extern` in the others, and send all inputs; "
        'the complete log is in details["log"]',
        details={"log": log},
    )
