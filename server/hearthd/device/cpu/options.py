"""Compiler options as the CPU backend applies them: lines before the source, and options of the C++ compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hearthd.device.compiler.options import parse_options

ARCHITECTURE = 700
"""Value of `__CUDA_ARCH__`: independent thread scheduling, but none of the code paths for later architectures, which
are mostly inline PTX (cp.async, ldmatrix, mma, TMA) that could not run here."""

_STANDARDS = {"c++11": "gnu++17", "c++14": "gnu++17", "c++17": "gnu++17", "c++20": "gnu++20"}
_MACROS = {
    "use_fast_math": "__USE_FAST_MATH__",  # only defines the macro: the exact functions are used in any case
    "device-int128": "__CUDACC_RTC_INT128__",
    "device-debug": "__CUDACC_DEBUG__",
}


@dataclass
class CpuOptions:
    """Options of a compile: the text before the source, and the compiler's arguments."""

    standard: str = "gnu++17"
    prologue: list[str] = field(default_factory=list)  # #define and #undef lines, in order
    arguments: list[str] = field(default_factory=list)  # for the C++ compiler
    warnings: bool = True
    notes: list[str] = field(default_factory=list)  # lines of the log


def parse_cpu_options(options: Sequence[str]) -> CpuOptions:
    """Parses options. Raises `Refusal` (COMPILE_FAILED) for an option that no backend accepts."""
    parsed = parse_options(options)
    result = CpuOptions(warnings=not parsed.has("disable-warnings"), notes=parsed.without_effect(on_gpu=False))
    standard = parsed.last("std", "c++17")
    result.standard = _STANDARDS[standard]
    if standard in ("c++11", "c++14") and result.warnings:
        result.notes.append(f"warning: the option '-std={standard}' means c++17 on the CPU backend")
    result.prologue += [f"#define {macro} 1" for long, macro in _MACROS.items() if parsed.has(long)]
    defined: set[str] = set()
    for name, text in parsed.macros:
        plain = name.partition("(")[0]
        if text is None or plain in defined:  # NVRTC uses the last definition
            result.prologue.append(f"#undef {plain}")
        if text is not None:
            result.prologue.append(f"#define {name} {text}")
            defined.add(plain)
    if parsed.last("fmad") == "false":
        result.arguments.append("-ffp-contract=off")
    return result
