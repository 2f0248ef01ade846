"""Compiler from CUDA C++ to CUBIN with NVRTC. Runs in compile workers: needs no context, no driver and no CuPy."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cuda.bindings import nvrtc

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Image, Source
from hearthd.device.compiler.device_functions import Header, headers_for
from hearthd.device.compiler.instrumentation import instrument
from hearthd.device.compiler.options import parse_options
from hearthd.device.compiler.parameter_kinds import parameter_kinds

_PROGRAM = "kernel.cu"
_DEFAULTS = ("--std=c++17",)
_EXHAUSTED = re.compile(r"catastrophic error: out of memory|Loop in catastrophic error processing")


class NvrtcError(Exception):
    """A failed call of NVRTC; `status` is its nvrtcResult."""

    def __init__(self, status: nvrtc.nvrtcResult) -> None:
        self.status = status
        _, text = nvrtc.nvrtcGetErrorString(status)
        super().__init__(text.decode(errors="replace"))


class NvrtcCompiler:
    """NVRTC for one device. `compute_capability` is (major, minor); `includes` are the directories of CUDA's headers.

    The library is loaded at the first use.
    """

    def __init__(self, compute_capability: tuple[int, int], includes: Sequence[str] | None = None) -> None:
        self._capability = compute_capability
        self._folders = None if includes is None else tuple(includes)

    @property
    def folders(self) -> tuple[str, ...]:
        """The directories of CUDA's own headers."""
        return include_folders() if self._folders is None else self._folders

    def identity(self) -> bytes:
        """Returns the version, the target architecture, the default options and the directories of headers, as text."""
        version, name, _, missing = self._library
        includes = [f"-I{folder}" for folder in self.folders]
        return "\n".join((f"nvrtc {version}{missing}", name, *_DEFAULTS, *includes)).encode()

    def compile(self, source: Source, relocatable: bool = False) -> Image:
        """Compiles to CUBIN, or to PTX if NVRTC does not know the device's architecture. May block for seconds.

        `relocatable`: compiles to code that can be linked, which is LTO-IR if the source's options say so.
        With -fsanitize=address, the result is instrumented PTX.

        Raises Refusal(COMPILE_FAILED) with `details["log"]`, Refusal(NO_COMPILER), and the refusals of `parse_options`.
        """
        version, name, _, missing = self._library
        if missing:
            raise Refusal(
                Reason.NO_COMPILER,
                f"CUDA C++ source was sent, but NVRTC cannot be used here: {missing}",
                fix="install the nvidia-cuda-nvrtc package of the CUDA version in use, or send CUBIN",
            )
        parsed = parse_options(source.options)
        if any("\0" in text for pair in ((source.code, ""), *source.headers) for text in pair):
            raise _compile_failed(
                "the source or a header contains a NUL character, at which NVRTC would stop reading", ""
            )
        defaults = () if parsed.has("std") else _DEFAULTS
        includes = (f"-I{folder}" for folder in self.folders)
        own = headers_for(source)
        options = (*defaults, *parsed.for_nvrtc(), *includes, *(f"--pre-include={header}" for header, _ in own))
        if relocatable and not parsed.has("relocatable-device-code"):
            options += ("--relocatable-device-code=true",)
        lto = relocatable and parsed.optimized_by_linker
        image = self._run(source, own, (f"--gpu-architecture={name}", *options), version, lto)
        if lto:  # LTO-IR does not have the kinds of parameters; PTX does, and is made faster than CUBIN
            ptx_options = [option for option in options if option != "--dlink-time-opt"]
            architecture_option = f"--gpu-architecture={name.replace('sm_', 'compute_')}"
            described = self._run(source, own, (architecture_option, *ptx_options), version, False)
            image = dataclasses.replace(image, kinds=described.kinds)
        notes = parsed.without_effect(on_gpu=True)
        return dataclasses.replace(image, log="\n".join((*notes, image.log)).strip()) if notes else image

    def _run(self, source: Source, own: Sequence[Header], options: tuple[str, ...], version: str, lto: bool) -> Image:
        """Compiles the source, with `own` headers of the compiler, to CUBIN or PTX, or to LTO-IR."""
        headers = [text.encode() for _, text in (*source.headers, *own)]
        names = [name.encode() for name, _ in (*source.headers, *own)]
        try:
            program = _call(
                nvrtc.nvrtcCreateProgram, source.code.encode(), _PROGRAM.encode(), len(names), headers, names
            )
        except NvrtcError as error:
            raise _compile_failed(f"NVRTC rejects the source: {error}", "") from error
        try:
            return self._compile(program, source, options, version, lto)
        finally:
            nvrtc.nvrtcDestroyProgram(program)

    def _compile(self, program: Any, source: Source, options: tuple[str, ...], version: str, lto: bool) -> Image:
        try:
            for expression in source.name_expressions:
                _call(nvrtc.nvrtcAddNameExpression, program, expression.encode())
            _call(nvrtc.nvrtcCompileProgram, program, len(options), [option.encode() for option in options])
        except NvrtcError as error:
            raise _refusal(error, _log(program), version) from error
        log = _log(program)
        lowered: dict[str, str] = {}
        for expression in source.name_expressions:
            try:
                lowered[expression] = _call(nvrtc.nvrtcGetLoweredName, program, expression.encode()).decode()
            except NvrtcError as error:
                problem = f"the name expression {expression!r} names no kernel or variable ({error})"
                raise _compile_failed(problem, log) from error
        if lto:
            return Image(_read(program, nvrtc.nvrtcGetLTOIRSize, nvrtc.nvrtcGetLTOIR), lowered, log)
        _, _, cubin, _ = self._library
        ptx = _read(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
        code = _read(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN) if cubin else ptx
        if parse_options(source.options).has("fsanitize"):
            code = instrument(ptx.rstrip(b"\0").decode()).encode()
        return Image(code=code, names=lowered, log=log, kinds=parameter_kinds(ptx))

    @functools.cached_property
    def _library(self) -> tuple[str, str, bool, str]:
        """NVRTC's version, the target architecture, True if the result is CUBIN, and the reason why NVRTC is unusable.

        The reason is empty if NVRTC can be used.
        """
        try:
            major, minor = _call(nvrtc.nvrtcVersion)
            supported = tuple(_call(nvrtc.nvrtcGetSupportedArchs))
        except Exception as error:  # missing or too old: modules can still be loaded, but not compiled
            return "", "", False, str(error) or type(error).__name__
        return f"{major}.{minor}", *architecture(self._capability, supported), ""


def architecture(compute_capability: tuple[int, int], supported: tuple[int, ...]) -> tuple[str, bool]:
    """Returns the architecture to compile for, and True if its code is CUBIN.

    From compute capability 9.0 on, this is the architecture-specific variant ("sm_90a"), with all features of the
    device; such code runs on this device only. For a device newer than NVRTC, it is PTX for the newest architecture
    that both support.
    """
    major, minor = compute_capability
    number = 10 * major + minor
    if number in supported:
        return f"sm_{number}{'a' if major >= 9 else ''}", True
    older = [candidate for candidate in supported if candidate <= number]
    return f"compute_{max(older or supported)}", False


@functools.cache
def include_folders() -> tuple[str, ...]:
    """Returns the directories of cuda_fp16.h, cooperative_groups.h and libcu++; empty if there are none.

    NVRTC's headers come first (cuda-pathfinder searches site-packages, Conda, then the toolkit), otherwise CuPy's copy
    of the half-precision headers. libcu++ and CUB are taken from the same place, otherwise from CuPy.
    """
    cupy = _package("cupy")
    bundle = cupy / "_core" / "include" / "cupy" if cupy else None
    root = _toolkit_headers()
    if root is None and bundle:
        root = next((path for path in sorted(bundle.glob("_cuda/cuda-1*"), reverse=True) if path.is_dir()), None)
    folders = [root] if root else []
    if root and (root / "cccl").is_dir():
        folders.append(root / "cccl")
    elif bundle and not (root and (root / "cuda" / "std").is_dir()):
        folders += [bundle / "_cccl" / library for library in ("libcudacxx", "cub", "thrust")]
    return tuple(str(folder) for folder in folders if folder.is_dir())


def _toolkit_headers() -> Path | None:
    try:
        from cuda.pathfinder import find_nvidia_header_directory

        directory = find_nvidia_header_directory("cudart")
    except (ImportError, RuntimeError):  # an older cuda-pathfinder, or none
        directory = None
    if directory:
        return Path(directory)
    from cupy.cuda import get_cuda_path

    candidates: list[Path] = []
    nvidia = _package("nvidia")
    if nvidia:
        candidates.append(nvidia / "cuda_runtime" / "include")
    toolkit = get_cuda_path()
    if toolkit:
        candidates.append(Path(toolkit) / "include")
    return next((path for path in candidates if (path / "cuda_fp16.h").is_file()), None)


def _package(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else None


def _call(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:
    """Returns the results of a call without its status. Raises NvrtcError."""
    status, *values = function(*arguments)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise NvrtcError(status)
    return values[0] if len(values) == 1 else tuple(values)


def _read(program: Any, measure: Callable[..., tuple[Any, ...]], get: Callable[..., tuple[Any, ...]]) -> bytes:
    size: int = _call(measure, program)
    if size <= 1:  # Python has a single object for each one-byte string, which must not be written to
        return b""
    data = bytes(size)
    _call(get, program, data)
    return data


def _log(program: Any) -> str:
    try:
        log = _read(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
    except NvrtcError:
        return ""
    return log.rstrip(b"\0").decode(errors="replace").strip()


def _refusal(error: NvrtcError, log: str, version: str) -> Refusal:
    results = nvrtc.nvrtcResult
    if error.status == results.NVRTC_ERROR_OUT_OF_MEMORY or _EXHAUSTED.search(log):
        raise MemoryError
    if error.status == results.NVRTC_ERROR_INVALID_OPTION:
        return _compile_failed(f"NVRTC {version} refuses an option: {_first_error(log)}", log)
    if error.status == results.NVRTC_ERROR_COMPILATION:
        return _compile_failed(_first_error(log), log)
    return _compile_failed(f"NVRTC failed: {error}", log)


def _first_error(log: str) -> str:
    """Returns the first line of the log that describes an error."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "NVRTC gives no reason")


def _compile_failed(message: str, log: str) -> Refusal:
    return Refusal(
        Reason.COMPILE_FAILED,
        message,
        fix='correct the source; the complete log is in details["log"]' if log else "correct the source or its options",
        details={"log": log},
    )
