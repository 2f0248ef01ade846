"""CUDA C++ to CUBIN with NVRTC. Runs on compile threads: needs no context, and CuPy's binding releases the GIL."""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path

from cupy_backends.cuda.libs import nvrtc

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.server import Image, Source

_PROGRAM = "kernel.cu"
_INVALID_OPTION = 5  # NVRTC_ERROR_INVALID_OPTION
_COMPILATION = 6  # NVRTC_ERROR_COMPILATION
_DEFAULTS = ("--std=c++17",)
_STANDARD = re.compile(r"-{1,2}std\b")

_ALLOWED = re.compile(
    r"""
      (-D|--define-macro=) \s* =? \s* [A-Za-z_].*
    | (-U|--undefine-macro=) \s* =? \s* [A-Za-z_]\w*
    | --?std=c\+\+\d\d
    | --?use_fast_math
    | -lineinfo | --generate-line-info
    | -G | --device-debug
    | --?maxrregcount=\d+
    | --?(ftz|prec-div|prec-sqrt|fmad)=(true|false)
    | -default-device | --device-as-default-execution-space
    | -dopt(=\w+)? | --dopt(=\w+)? | --device-optimize(=\w+)?
    | -extra-device-vectorization | --extra-device-vectorization
    | -restrict | --restrict
    | -device-int128 | --device-int128
    | --?diag-(error|suppress|warn)=[\d,]+
    | -w | --disable-warnings
    """,
    re.VERBOSE | re.DOTALL,
)
ALLOWED = (
    "-D, -U, -std, -use_fast_math, -lineinfo, -G, -maxrregcount, -ftz, -prec-div, -prec-sqrt, -fmad, -default-device, "
    "-dopt, -extra-device-vectorization, -restrict, -device-int128, -diag-error, -diag-suppress, -diag-warn, -w"
)


class NvrtcCompiler:
    """For one device. `compute_capability` is (major, minor)."""

    def __init__(self, compute_capability: tuple[int, int]) -> None:
        try:
            self._version: tuple[int, int] = nvrtc.getVersion()
            supported: tuple[int, ...] = nvrtc.getSupportedArchs()
        except Exception as error:  # the library is missing or too old: modules can still be loaded, not compiled
            self._missing = str(error)
            self._architecture, self._cubin = "", False
            self._version = (0, 0)
        else:
            self._missing = ""
            self._architecture, self._cubin = architecture(compute_capability, supported)
        self._includes = tuple(f"-I{folder}" for folder in include_folders())

    def identity(self) -> bytes:
        major, minor = self._version
        return "\n".join((f"nvrtc {major}.{minor}", self._architecture, *_DEFAULTS, *self._includes)).encode()

    def compile(self, source: Source) -> Image:
        if self._missing:
            raise Refusal(
                Reason.NO_COMPILER,
                f"CUDA C++ source was sent, but NVRTC cannot be used here: {self._missing}",
                fix="install the nvidia-cuda-nvrtc package of the CUDA version in use, or send CUBIN",
            )
        check_options(source.options)
        if any("\0" in text for pair in ((source.code, ""), *source.headers) for text in pair):
            raise _failed("the source or a header contains a NUL character, at which NVRTC would stop reading", "")
        defaults = () if any(_STANDARD.match(option) for option in source.options) else _DEFAULTS
        options = (f"--gpu-architecture={self._architecture}", *defaults, *source.options, *self._includes)
        headers = [text.encode() for _, text in source.headers]
        names = [name.encode() for name, _ in source.headers]
        try:
            program: int = nvrtc.createProgram(source.code, _PROGRAM, headers, names)
        except nvrtc.NVRTCError as error:
            raise _failed(f"NVRTC does not take the source: {error}", "") from error
        try:
            return self._compile(program, source, options)
        finally:
            nvrtc.destroyProgram(program)

    def _compile(self, program: int, source: Source, options: tuple[str, ...]) -> Image:
        try:
            for expression in source.name_expressions:
                nvrtc.addNameExpression(program, expression)
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError as error:
            log = _log(program)
            if error.status == _INVALID_OPTION:
                version = ".".join(map(str, self._version))
                raise _failed(f"NVRTC {version} refuses an option: {_first(log)}", log) from error
            if error.status == _COMPILATION:
                raise _failed(_first(log), log) from error
            raise _failed(f"NVRTC failed: {error}", log) from error
        log = _log(program)
        lowered: dict[str, str] = {}
        for expression in source.name_expressions:
            try:
                lowered[expression] = nvrtc.getLoweredName(program, expression)
            except nvrtc.NVRTCError as error:
                why = f"the name expression {expression!r} names no kernel or variable ({error})"
                raise _failed(why, log) from error
        # CuPy drops the last byte of CUBIN as if it were a text's end mark.
        code = nvrtc.getCUBIN(program) + b"\0" if self._cubin else nvrtc.getPTX(program)
        return Image(code=code, names=lowered, log=log)


def architecture(compute_capability: tuple[int, int], supported: tuple[int, ...]) -> tuple[str, bool]:
    """What to compile for, and whether that gives CUBIN.

    From 9.0 on the architecture-specific variant ("sm_90a"), with all that the device can do: what is compiled here
    runs on this device only. A device newer than NVRTC gets PTX for the newest that both know.
    """
    major, minor = compute_capability
    number = 10 * major + minor
    if number in supported:
        return f"sm_{number}{'a' if major >= 9 else ''}", True
    older = [each for each in supported if each <= number]
    return f"compute_{max(older or supported)}", False


def check_options(options: tuple[str, ...]) -> None:
    """Options that would choose the device, or read or write files of the host, are refused by name."""
    for option in options:
        if not _ALLOWED.fullmatch(option):
            raise Refusal(
                Reason.COMPILE_FAILED,
                f"The compiler option {option!r} is not allowed; these are: {ALLOWED}.",
                fix="write each option and its value in one string; pass headers by name and content; leave the "
                "architecture to the device",
                details={"requested": option, "allowed": ALLOWED, "log": ""},
            )


@functools.cache
def include_folders() -> tuple[str, ...]:
    """Where cuda_fp16.h, cooperative_groups.h and libcu++ are; empty where there are none.

    The headers that go with NVRTC first (cuda-pathfinder looks in site-packages, Conda, then the toolkit), else
    CuPy's copy of the half-precision headers; libcu++ and CUB from beside them, else from CuPy.
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
        folders += [bundle / "_cccl" / part for part in ("libcudacxx", "cub", "thrust")]
    return tuple(str(folder) for folder in folders if folder.is_dir())


def _toolkit_headers() -> Path | None:
    try:
        from cuda.pathfinder import find_nvidia_header_directory

        found = find_nvidia_header_directory("cudart")
    except (ImportError, RuntimeError):  # an older cuda-pathfinder, or none
        found = None
    if found:
        return Path(found)
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
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def _log(program: int) -> str:
    try:
        return str(nvrtc.getProgramLog(program)).strip()
    except (nvrtc.NVRTCError, UnicodeDecodeError):
        return ""


def _first(log: str) -> str:
    """The first line that says what is wrong."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "NVRTC gives no reason")


def _failed(message: str, log: str) -> Refusal:
    return Refusal(
        Reason.COMPILE_FAILED,
        message,
        fix='correct the source; the whole log is in details["log"]' if log else "correct the source or its options",
        details={"log": log},
    )
