"""NVRTC's compile options, as the CPU backend understands them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.policy.includes import check_name

DEFAULT_ARCHITECTURE = 700
"""`__CUDA_ARCH__` unless `-arch` says otherwise: independent thread scheduling, but none of the paths for later
architectures, which are mostly inline PTX (cp.async, ldmatrix, mma, TMA) that could not run here."""

_STANDARDS = {"11": "gnu++17", "14": "gnu++17", "17": "gnu++17", "20": "gnu++20"}  # 17 reads what 11 and 14 allow
_IGNORED = re.compile(
    r"-{1,2}(use_fast_math|fmad=\w+|ftz=\w+|prec-sqrt=\w+|prec-div=\w+|extra-device-vectorization|lineinfo"
    r"|generate-line-info|device-debug|G|g|maxrregcount=\d+|restrict|w|disable-warnings|default-device"
    r"|device-as-default-execution-space|relocatable-device-code=\w+|rdc=\w+|dopt=\w+|dopt|dlto|minimal|time=\S+"
    r"|Xptxas=?.*|ptxas-options=.*|diag-\w+=.*|extensible-whole-program|ewp|builtin-move-forward=\w+"
    r"|builtin-initializer-list=\w+|no-source-include|modify-stack-limit=\w+|no-cache|split-compile=\d+|O[0-3]"
    r"|display-error-number|err-no|brief-diagnostics=\w+|pch|jitify)"
)
_ARCHITECTURE = re.compile(r"(?:sm|compute|lto)_(\d+)[af]?")
_WITH_VALUE = {
    "-D": "-D", "--define-macro": "-D", "-U": "-U", "--undefine-macro": "-U", "-I": "-I", "--include-path": "-I",
    "-std": "-std=", "--std": "-std=", "-arch": "-arch=", "--gpu-architecture": "-arch=",
    "-maxrregcount": "-maxrregcount=", "--maxrregcount": "-maxrregcount=", "-Xptxas": "-Xptxas=",
    "--ptxas-options": "--ptxas-options=", "-include": "-include=", "--pre-include": "-include=",
}  # fmt: skip
_LONG_FORMS = {
    "--define-macro=": "-D", "--undefine-macro=": "-U", "--include-path=": "-I", "--std=": "-std=",
    "--gpu-architecture=": "-arch=", "--pre-include=": "-include=",
}  # fmt: skip
_MACRO = re.compile(r"[A-Za-z_]\w*(\([\w\s,.]*\))?")


@dataclass
class CompileOptions:
    """Options after parsing: what goes before the source, and how it is compiled."""

    standard: str = "gnu++17"
    architecture: int = DEFAULT_ARCHITECTURE
    prologue: list[str] = field(default_factory=list)  # #define, #undef and #include lines, in order
    include_dirs: list[str] = field(default_factory=list)


def parse(options: Sequence[str], has_headers: bool) -> CompileOptions:
    """Raises `Refusal` (COMPILE_FAILED) for an option that is unknown or cannot be followed, naming it."""
    result = CompileOptions()
    pending = list(options)
    while pending:
        option = pending.pop(0).strip()
        name = _WITH_VALUE.get(option)
        if name is not None:
            if not pending:
                raise _refuse(option, "needs a value after it")
            option = name + pending.pop(0).strip()
        _apply(result, option, has_headers)
    return result


def _apply(result: CompileOptions, option: str, has_headers: bool) -> None:  # noqa: PLR0912 - one case an option
    given = option
    for long, short in _LONG_FORMS.items():
        if option.startswith(long):
            option = short + option[len(long) :]
    if option.startswith("-D"):
        name, equals, value = option[2:].partition("=")
        if not _MACRO.fullmatch(name) or "\n" in value:
            raise _refuse(given, "does not define a macro")
        result.prologue.append(f"#define {name} {value if equals else '1'}")
    elif option.startswith("-U"):
        if not _MACRO.fullmatch(option[2:]):
            raise _refuse(given, "does not name a macro")
        result.prologue.append(f"#undef {option[2:]}")
    elif option.startswith("-I"):
        if not has_headers:
            raise _refuse(given, "names a directory, and the daemon reads no directories", "Send the headers along.")
        result.include_dirs.append(option[2:])
    elif option.startswith("-include="):
        check_name(option[9:])
        result.prologue.append(f'#include "{option[9:]}"')
    elif option.startswith("-std="):
        standard = option.removeprefix("-std=").removeprefix("c++").removeprefix("gnu++")
        if standard not in _STANDARDS:
            raise _refuse(given, "is not one of c++11, c++14, c++17 and c++20")
        result.standard = _STANDARDS[standard]
    elif option.startswith("-arch="):
        match = _ARCHITECTURE.fullmatch(option[6:])
        if match is None:
            raise _refuse(given, "is not an architecture such as sm_80 or compute_90")
        result.architecture = int(match[1]) * 10
    elif option in ("-use_fast_math", "--use_fast_math"):
        result.prologue.append("#define __USE_FAST_MATH__ 1")  # the exact functions serve: nothing else changes
    elif option and not _IGNORED.fullmatch(option):
        raise _refuse(given, "is not known to the CPU backend", "Remove it; see NVRTC's list of options.")


def _refuse(option: str, why: str, fix: str = "") -> Refusal:
    return Refusal(
        Reason.COMPILE_FAILED,
        f"The compile option {option!r} {why}.",
        fix=fix,
        details={"option": option, "log": f"error: the option {option!r} {why}"},
    )
