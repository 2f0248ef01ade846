"""Compiler options: one list for every backend, so that a program that compiles on one backend compiles on all.

Covers each option of NVRTC's documentation ("Supported Compile Options"): it is followed, has no effect, or is refused.
Covers nvcc's options that programs for CuPy use: they have no effect. Covers one option of clang, -fsanitize=address.
Does not cover how a backend follows the options (`cuda/nvrtc.py`, `cpu/options.py`). Options are refused if they change
the meaning of the source by a file of the host, or produce code that cannot be loaded. Pure.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hearth_proto.reasons import Reason, Refusal


class Effect(enum.Enum):
    """Scope in which an accepted option has an effect."""

    EVERYWHERE = enum.auto()
    GPU = enum.auto()  # in NVRTC's code for a GPU, or in its messages
    DAEMON = enum.auto()  # in what the daemon makes of NVRTC's code; no compiler gets the option
    NOWHERE = enum.auto()  # a hint about NVRTC's own work: no backend passes it on


class Option(NamedTuple):
    """An accepted option.

    `value` is a regular expression that its value must match; None: the option takes no value.
    """

    long: str
    short: str
    value: str | None
    effect: Effect
    default: str = ""  # the value if only the option's name is given; empty: a value is required


class RefusedOption(NamedTuple):
    """An option of NVRTC that no backend accepts."""

    long: str
    short: str
    takes_value: bool
    reason: str
    fix: str


_WHOLE_PROGRAM = Option("device-w", "dw", None, Effect.NOWHERE)
_BOOL = "true|false"
_RELOCATABLE = Option("relocatable-device-code", "rdc", _BOOL, Effect.GPU)
_LTO = Option("dlink-time-opt", "dlto", None, Effect.GPU)
_NUMBERS = r"\d+(,\d+)*"

ACCEPTED = (
    Option("define-macro", "D", r".+", Effect.EVERYWHERE),
    Option("undefine-macro", "U", r".+", Effect.EVERYWHERE),
    Option("std", "std", r"c\+\+(11|14|17|20)", Effect.EVERYWHERE),
    Option("use_fast_math", "use_fast_math", None, Effect.EVERYWHERE),
    Option("fmad", "fmad", _BOOL, Effect.EVERYWHERE),
    Option("device-int128", "device-int128", None, Effect.EVERYWHERE),
    Option("device-debug", "G", None, Effect.EVERYWHERE),
    Option("disable-warnings", "w", None, Effect.EVERYWHERE),
    Option("device-as-default-execution-space", "default-device", None, Effect.EVERYWHERE),
    Option("generate-line-info", "lineinfo", None, Effect.GPU),
    Option("maxrregcount", "maxrregcount", r"\d+", Effect.GPU),
    Option("ftz", "ftz", _BOOL, Effect.GPU),
    Option("prec-sqrt", "prec-sqrt", _BOOL, Effect.GPU),
    Option("prec-div", "prec-div", _BOOL, Effect.GPU),
    Option("dopt", "dopt", "on", Effect.GPU, "on"),
    Option("Ofast-compile", "Ofc", "0|min|mid|max", Effect.GPU),
    Option("extra-device-vectorization", "extra-device-vectorization", None, Effect.GPU),
    Option("restrict", "restrict", None, Effect.GPU),
    Option("jump-table-density", "jtd", r"\d{1,2}|10[01]", Effect.GPU),
    Option("device-stack-protector", "device-stack-protector", _BOOL, Effect.GPU),
    Option("builtin-move-forward", "builtin-move-forward", _BOOL, Effect.GPU),
    Option("builtin-initializer-list", "builtin-initializer-list", _BOOL, Effect.GPU),
    _RELOCATABLE,
    _LTO,
    Option("diag-error", "diag-error", _NUMBERS, Effect.GPU),
    Option("diag-suppress", "diag-suppress", _NUMBERS, Effect.GPU),
    Option("diag-warn", "diag-warn", _NUMBERS, Effect.GPU),
    Option("display-error-number", "err-no", None, Effect.GPU),
    Option("no-display-error-number", "no-err-no", None, Effect.GPU),
    Option("brief-diagnostics", "brief-diag", _BOOL, Effect.GPU),
    Option("optimization-info", "opt-info", "inline", Effect.GPU),
    Option("fsanitize", "fsanitize", "address", Effect.DAEMON),
    _WHOLE_PROGRAM,
    Option("modify-stack-limit", "modify-stack-limit", _BOOL, Effect.NOWHERE),
    Option("no-cache", "no-cache", None, Effect.NOWHERE),
    Option("frandom-seed", "frandom-seed", r".+", Effect.NOWHERE),
    Option("no-source-include", "no-source-include", None, Effect.NOWHERE),
    Option("split-compile", "split-compile", r"\d+", Effect.NOWHERE),
    Option("minimal", "minimal", None, Effect.NOWHERE),
    Option("pch", "pch", None, Effect.NOWHERE),
    Option("pch-verbose", "pch-verbose", _BOOL, Effect.NOWHERE),
    Option("pch-messages", "pch-messages", _BOOL, Effect.NOWHERE),
    Option("instantiate-templates-in-pch", "instantiate-templates-in-pch", _BOOL, Effect.NOWHERE),
)

_FILE = ("it names a file of the host", "leave it out")
_LINK = (
    "it produces code that the daemon does not link",
    "leave it out, or use -rdc=true or -dlto",
)
_NO_CODE = ("it produces no code that a device can run", "leave it out")

IGNORED = (
    Option("gpu-architecture", "arch", r".+", Effect.NOWHERE),
    Option("gpu-code", "code", r".+", Effect.NOWHERE),
    Option("generate-code", "gencode", r".+", Effect.NOWHERE),
    Option("include-path", "I", r".+", Effect.NOWHERE),
    Option("use-bundled-headers", "use-bundled-headers", r".+", Effect.NOWHERE),
    Option("create-pch", "create-pch", r".+", Effect.NOWHERE),
    Option("use-pch", "use-pch", r".+", Effect.NOWHERE),
    Option("pch-dir", "pch-dir", r".+", Effect.NOWHERE),
    Option("time", "time", r".+", Effect.NOWHERE),
    Option("fdevice-time-trace", "fdevice-time-trace", r".+", Effect.NOWHERE),
    Option("ptxas-options", "Xptxas", r".+", Effect.NOWHERE),
    Option("compiler-options", "Xcompiler", r".+", Effect.NOWHERE),
    Option("compiler-bindir", "ccbin", r".+", Effect.NOWHERE),
    Option("machine", "m", r"64", Effect.NOWHERE),
    Option("expt-relaxed-constexpr", "expt-relaxed-constexpr", None, Effect.NOWHERE),
    Option("expt-extended-lambda", "expt-extended-lambda", None, Effect.NOWHERE),
    Option("extended-lambda", "extended-lambda", None, Effect.NOWHERE),
    Option("warning-as-error", "Werror", r".+", Effect.NOWHERE),
)
"""Options of NVRTC and nvcc that select the device, folders and files of the client's host, or the output of the
compiler. They are accepted, with a line in the compile log, so that programs for CuPy compile unchanged."""

_REASONS = {
    "gpu-architecture": "the daemon compiles for the device that runs the code",
    "gpu-code": "the daemon compiles for the device that runs the code",
    "generate-code": "the daemon compiles for the device that runs the code",
    "include-path": 'the compiler reads no folder; send headers by name and content, headers={"name.h": text}',
}

REFUSED = (
    RefusedOption(
        "pre-include", "include", True, _FILE[0], "write the #include into the source, and send the header along"
    ),
    RefusedOption("extensible-whole-program", "ewp", False, *_LINK),
    RefusedOption("gen-opt-lto", "gen-opt-lto", False, *_LINK),
    RefusedOption("optix-ir", "optix-ir", False, *_NO_CODE),
    RefusedOption("fdevice-syntax-only", "fdevice-syntax-only", False, *_NO_CODE),
    RefusedOption(
        "device-float128", "device-float128", False,
        "devices before compute capability 10.0 have no such type", "use double, or two of them",
    ),
)  # fmt: skip

_PASSED_ON = ("Xptxas", "ptxas-options", "Xcompiler", "compiler-options")
"""nvcc's options whose value is an option of another program."""
_UNKNOWN = "NVRTC has no such option"
_HOST_COMPILER = "host-compiler"
_HOST_IGNORED = re.compile(r"-(O[0-4s]?|g|Wall|Wextra|fPIC|m64)")
"""Options of a host's compiler and of nvcc that do not change the meaning of the code."""
_HOST = re.compile(r"-{1,2}(O[0-3s]?|g|Wall|Wextra|f[\w-]+|m[\w-]+)(=.*)?")
_RELOCATABLE_NAMES = ("dc", "device-c")
"""nvcc's names of the option for relocatable device code without a value."""
_LETTERS = frozenset("DUIGw")
"""One-letter options, whose value may follow without a separator."""

_MACRO = re.compile(r"[A-Za-z_]\w*(\([\w\s,.]*\))?")
_TOKENS = re.compile(
    r"""R"([^()\\\s]{0,16})\(.*?\)\1"|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)'|//.*|/\*.*?\*/|/\*|R?\"""", re.DOTALL
)

ALLOWED = ", ".join(f"-{option.short}" for option in ACCEPTED)
"""The accepted options by their short names, separated by commas."""


@dataclass(frozen=True)
class ParsedOption:
    """An accepted option of a source: its text as given, and its parsed form."""

    text: str
    option: Option
    value: str


@dataclass
class CompileOptions:
    """The options of one source, after parsing."""

    options: list[ParsedOption] = field(default_factory=list)

    def has(self, long: str) -> bool:
        """True if an option with this long name, without dashes, was given."""
        return any(parsed.option.long == long for parsed in self.options)

    def last(self, long: str, default: str = "") -> str:
        """Returns the effective value of an option that may be given more than once: the last one, or `default`."""
        return next((parsed.value for parsed in reversed(self.options) if parsed.option.long == long), default)

    @property
    def macros(self) -> list[tuple[str, str | None]]:
        """Macros in order, as (name with parameters, text); the text is None for an option that undefines the macro."""
        macros: list[tuple[str, str | None]] = []
        for parsed in self.options:
            if parsed.option.long == "define-macro":
                name, equals, text = parsed.value.partition("=")
                macros.append((name, text if equals else "1"))
            elif parsed.option.long == "undefine-macro":
                macros.append((parsed.value, None))
        return macros

    @property
    def linked(self) -> bool:
        """True if the options produce code that must be linked."""
        return self.has(_RELOCATABLE.long) or self.has(_LTO.long)

    @property
    def optimized_by_linker(self) -> bool:
        """True if the code is optimized at link time."""
        return self.has(_LTO.long)

    def for_nvrtc(self) -> list[str]:
        """Returns the options for NVRTC, each as one string in NVRTC's form."""
        return [_for_nvrtc(parsed) for parsed in self.options if parsed.option.effect not in _OWN]

    def without_effect(self, on_gpu: bool) -> list[str]:
        """Returns a line for the compile log for each option that has no effect on this kind of device."""
        if self.has("disable-warnings"):
            return []
        ignored = {Effect.NOWHERE} if on_gpu else {Effect.NOWHERE, Effect.GPU}
        reasons = {
            parsed.text: _REASONS.get(parsed.option.long) for parsed in self.options if parsed.option.effect in ignored
        }
        scope = "here" if on_gpu else "on the CPU backend"
        return [
            f"warning: the option '{text}' has no effect {scope}" + (f": {reason}" if reason else "")
            for text, reason in reasons.items()
        ]


_OWN = frozenset({Effect.NOWHERE, Effect.DAEMON})
"""Effects of options that NVRTC does not get."""


def _for_nvrtc(parsed: ParsedOption) -> str:
    option = parsed.option
    if option.short in ("D", "U"):
        return f"-{option.short}{parsed.value}"
    return f"--{option.long}" if option.value is None else f"--{option.long}={parsed.value}"


def valid_options(options: Sequence[str]) -> CompileOptions:
    """Returns the parsed options; none of them if any is invalid, because the compile refuses those."""
    try:
        return parse_options(options)
    except Refusal:
        return CompileOptions()


def parse_options(options: Sequence[str]) -> CompileOptions:
    """Parses options as NVRTC does: a value may be in the same string as its option or in the next one.

    Raises:
        Refusal: COMPILE_FAILED, with the option, the reason, and the options that are allowed.
    """
    result = CompileOptions()
    for text, name, value in _split(options):
        result.options.append(_check_option(text, name, value))
    return result


def _split(options: Sequence[str]) -> Iterator[tuple[str, str, str | None]]:
    """Splits the options; yields each one's text as given, its name without dashes, and its value."""
    pending = [option.strip() for option in options]
    pending.reverse()
    while pending:
        text = pending.pop()
        if not text:
            continue
        if "\n" in text or "\0" in text:
            raise _refusal(text, "it has more than one line", "write each option in one line")
        name, value = _split_name(text)
        if value is None and _takes_value(name) and pending and (name in _PASSED_ON or not pending[-1].startswith("-")):
            value = pending.pop()
            text = f"{text} {value}"
            if "\n" in value or "\0" in value:
                raise _refusal(text, "it has more than one line", "write each option in one line")
        yield text, name, value


def _split_name(text: str) -> tuple[str, str | None]:
    if text[0] != "-":
        return "", text
    if text[1:2] in ("D", "U", "I"):
        value = text[2:].lstrip().removeprefix("=").strip()
        return text[1], value or None
    bare = text[2:] if text.startswith("--") else text[1:]
    name, equals, value = bare.partition("=")
    if len(name) == 1 and text.startswith("--"):
        return "", text  # --D: NVRTC accepts single letters with one dash only
    return name.strip(), value.strip() if equals else None


def _takes_value(name: str) -> bool:
    option = _BY_NAME.get(name)
    if isinstance(option, Option):
        return option.value is not None
    return option is not None and option.takes_value


def _check_option(text: str, name: str, value: str | None) -> ParsedOption:
    option = _BY_NAME.get(name)
    if option is _RELOCATABLE and value == "false":
        return ParsedOption(text, _WHOLE_PROGRAM, "")
    if name in _RELOCATABLE_NAMES and value is None:
        return ParsedOption(text, _RELOCATABLE, "true")
    if option is None:
        if _HOST_IGNORED.fullmatch(text):
            return ParsedOption(text, Option(_HOST_COMPILER, _HOST_COMPILER, None, Effect.NOWHERE), "")
        host = bool(_HOST.fullmatch(text))
        reason = "it is an option of a host's compiler; NVRTC has no such option" if host else _UNKNOWN
        raise _refusal(text, reason, "leave it out" if host else "see NVRTC's documentation for its name")
    if isinstance(option, RefusedOption):
        raise _refusal(text, option.reason, option.fix)
    if option.value is None:
        if value is not None:
            raise _refusal(text, "it takes no value", f"write it as -{option.short}")
        return ParsedOption(text, option, "")
    value = value or option.default
    if not value:
        raise _refusal(text, "it needs a value", f"write -{option.short}{'' if option.short in _LETTERS else '='}VALUE")
    if not re.fullmatch(option.value, value):
        raise _refusal(text, f"its value is not allowed; allowed are {_allowed_values(option)}", "correct the value")
    if option.short == "D":
        _check_macro(text, value)
    elif option.short == "U" and not re.fullmatch(r"[A-Za-z_]\w*", value):
        raise _refusal(text, "it names no macro", "write -UNAME")
    return ParsedOption(text, option, value)


def _allowed_values(option: Option) -> str:
    descriptions = {_BOOL: "true and false", _NUMBERS: "numbers separated by commas", r"\d+": "the whole numbers"}
    if option.long == "std":
        return "c++11, c++14, c++17 and c++20"
    if option.short == "jtd":
        return "the numbers from 0 to 101"
    return descriptions.get(option.value or "", (option.value or "").replace("|", ", "))


def _check_macro(text: str, value: str) -> None:
    """Checks that the text of a macro ends within its own line of the source for every compiler.

    Raises Refusal(COMPILE_FAILED).
    """
    name, _, body = value.partition("=")
    if not _MACRO.fullmatch(name):
        raise _refusal(text, "it defines no macro", "write -DNAME or -DNAME=VALUE")
    if body.endswith("\\") or any(match[0] in ("/*", '"', 'R"') for match in _TOKENS.finditer(body)):
        raise _refusal(
            text,
            "its text is incomplete: a string, a comment or the line is not closed",
            "close the string, comment or line",
        )


def _refusal(text: str, reason: str, fix: str) -> Refusal:
    return Refusal(
        Reason.COMPILE_FAILED,
        f"The compiler option {text!r} is not allowed: {reason}. Allowed are: {ALLOWED}.",
        fix=fix,
        details={"option": text, "allowed": ALLOWED, "log": f"error: the option {text!r} is not allowed: {reason}"},
        fields=["options"],
    )


_BY_NAME: dict[str, Option | RefusedOption] = {}
for _option in (*ACCEPTED, *IGNORED, *REFUSED):
    _BY_NAME[_option.long] = _BY_NAME[_option.short] = _option
