"""The compiler's messages in the user's terms.

They have the file, line and text that the user wrote, and no internal names. Covers messages of g++ and clang about the
rewritten source. Does not cover mistakes that the compiler cannot locate because it sees them only in the appended
table (`mistakes.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

FILE = "kernel.cu"
OPTIONS_FILE = "<options>"
EXPRESSION = "<name expression "
"""Beginning of the file name that the table gives each name expression."""

HEADERS = {
    "half": "cuda_fp16.h", "half2": "cuda_fp16.h", "__half": "cuda_fp16.h", "__half2": "cuda_fp16.h",
    "__nv_bfloat16": "cuda_bf16.h", "__nv_bfloat162": "cuda_bf16.h", "cooperative_groups": "cooperative_groups.h",
    "cuFloatComplex": "cuComplex.h", "cuDoubleComplex": "cuComplex.h",
}  # fmt: skip
"""CUDA's headers, by names whose header programs often forget to include."""


MAX_WARNINGS = 50
MAX_WARNING_CHARACTERS = 16 << 10
_MAX_NOTES = 6
"""Limit of the notes of one message that are kept; a compiler may list a hundred candidates."""

_LOCATION = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+)(?::\d+)?: (?P<rest>.*)$")
_CONTEXT = re.compile(r"^(?P<file>[^\s:][^:\n]*): (?P<rest>(?:In|At) .*:)$")
_INCLUDED = re.compile(r"^\s*(?:In file included )?from (?P<file>[^:\n]+):(?P<line>\d+)")
_KIND = re.compile(r"(?P<kind>fatal error|error|warning|note): ")
_TAG = re.compile(r" \[-W(?P<name>[\w#+=-]+)\]$")
# The compiler quotes lines of the rewritten source; the log quotes the user's lines instead.
_NOISE = re.compile(
    r"^\s*\d*\s+\|( |$)|^\d+ (?:error|warning)s?.* generated\.$|^compilation terminated"
    r"|^\s*$|^cc1plus: |^error: (?:the following|unable to)"
)

WARNINGS = frozenset(
    """address aggressive-loop-optimizations array-bounds array-bounds= bool-compare bool-operation c++11-narrowing
    comment constant-conversion conversion-null cpp #warnings dangling-else deprecated-declarations div-by-zero
    division-by-zero duplicate-decl-specifier empty-body extra-tokens endif-labels format format-extra-args
    format-insufficient-args format-invalid-specifier format= implicit-const-int-float-conversion
    infinite-recursion init-self int-in-bool-context int-to-pointer-cast int-to-void-pointer-cast
    literal-conversion logical-not-parentheses macro-redefined memset-elt-size memset-transposed-args
    misleading-indentation missing-declarations multichar narrowing null-dereference overflow parentheses
    parentheses-equality return-local-addr return-stack-address return-type self-assign sequence-point
    shift-count-negative shift-count-overflow shift-negative-value shift-overflow sizeof-array-argument
    sizeof-array-div sizeof-pointer-div sizeof-pointer-memaccess sometimes-uninitialized stringop-overflow
    switch switch-bool tautological-compare tautological-constant-compare
    tautological-constant-out-of-range-compare tautological-overlap-compare tautological-unsigned-zero-compare
    type-limits unevaluated-expression uninitialized unsequenced unused-but-set-variable unused-comparison
    unused-function unused-label unused-lambda-capture unused-result unused-value unused-variable varargs
    write-strings writable-strings""".split()  # noqa: SIM905 - a list would be a page long
)
"""Warnings that reach the user, by their names in either compiler. Other warnings are about the rewriting, or a GPU's
compiler does not give them (signedness of comparisons, unused parameters)."""

WARNING_OPTIONS = ("-Wall", "-Wtype-limits", "-Wno-sign-compare", "-Wno-unknown-pragmas", "-Wno-attributes")
_COMMON = ("-fno-diagnostics-color",)
CLANG_OPTIONS = ("-fno-caret-diagnostics", "-ferror-limit=30", "-ftemplate-backtrace-limit=8", *_COMMON)
GCC_OPTIONS = ("-fmax-errors=30", "-fno-diagnostics-show-caret", "-fdiagnostics-color=never")

_PREFIXES = re.compile(
    r"hearth_kernel_|(?:::)?\bhearth_program(?:::|_)|(?:::)?\bhearth::"
    r"|(?<!\w)::(?=uint3|dim3)|__attribute__\(\(\w+\)\) ?"
)
_INTERNAL = re.compile(r"\bhearth|\bHearth|always_inline|__builtin_ia32")
_MISSING = re.compile(
    r"'(\w+)' (?:was not declared|has not been declared|does not name)"
    r"|(?:undeclared identifier|unknown type name) '(\w+)'"
)
_UNCLOSED_BRACE = re.compile(r"expected '\}'( at end of input)?")
_MISSING_SEPARATOR = re.compile(r"expected (?:'[,;]' or )?'[,;]' before '([^']+)'")
_INCLUDES = "includes this"


def clean(text: str) -> str:
    """Returns a message without the names that the rewriting introduces."""
    return _PREFIXES.sub("", text)


@dataclass
class Line:
    """A line of the compiler's log. `kind` is empty for a line that only gives the context of a message."""

    file: str
    number: int
    kind: str
    text: str


@dataclass
class Message:
    """An error or a warning, with the context lines and notes that belong to it."""

    main: Line
    context: list[Line] = field(default_factory=list)
    notes: list[Line] = field(default_factory=list)

    @property
    def is_error(self) -> bool:
        """True for an error, false for a warning."""
        return self.main.kind in ("error", "fatal error")

    @property
    def warning(self) -> str:
        """Name of the compiler option that a warning belongs to."""
        match = _TAG.search(self.main.text)
        return match["name"] if match else ""


class Messages:
    """The messages of one run of the compiler.

    `texts` maps the user's files to their lines; `directory` is that in which the compiler ran.
    """

    def __init__(self, log: str, texts: Mapping[str, Sequence[str]], directory: str) -> None:
        self._texts = texts
        self.raw = [
            line for line in log.replace(f"{directory}/", "").replace("./", "").split("\n") if not _NOISE.match(line)
        ]
        self.all = list(self._parse())

    def _parse(self) -> Iterator[Message]:
        context: list[Line] = []
        message: Message | None = None
        for raw in self.raw:
            line = _parse_line(raw)
            if line is None:
                continue
            if line.kind == "note" and message is not None:
                message.notes.append(line)
            elif line.kind in ("", "note"):
                context.append(line)
            else:
                if message is not None:
                    yield message
                message, context = Message(line, context), []
        if message is not None:
            message.notes += [line for line in context if line.number]
            yield message

    def errors(self, explained: bool = False) -> list[Message]:
        """Returns the errors, except those in files that are not the user's.

        Returns at most one error for each name expression, and none about the end of the source if `explained` is True.
        """
        errors: list[Message] = []
        locations: set[tuple[str, int]] = set()
        for message in self.all:
            user_line = self._user_line(message)
            if (
                not message.is_error
                or user_line is None
                or (explained and _UNCLOSED_BRACE.fullmatch(message.main.text))
            ):
                continue
            # A consequential error: of the same name expression, or inside code that a line of the user's uses.
            location = (user_line.file, 0 if user_line.file.startswith(EXPRESSION) else user_line.number)
            if location in locations and (user_line is not message.main or location[1] == 0):
                continue
            locations.add(location)
            errors.append(message)
        return errors

    def foreign_errors(self) -> list[Message]:
        """Returns the errors that no line of the user's led to."""
        return [message for message in self.all if message.is_error and self._user_line(message) is None]

    def warnings(self) -> list[Message]:
        """Returns the warnings about the user's own lines."""
        return [
            message
            for message in self.all
            if message.main.kind == "warning"
            and self.is_user_file(message.main.file)
            and (not message.warning or message.warning in WARNINGS)
            and not _INTERNAL.search(clean(message.main.text))
        ]

    def is_user_file(self, file: str) -> bool:
        """True if `file` is one of the user's: the source, a sent header, a name expression, or the options."""
        return file in self._texts or file.startswith(EXPRESSION) or file == OPTIONS_FILE

    def _user_line(self, message: Message) -> Line | None:
        """Returns the user's line that a message is about: the message's own line, or the nearest one that led to it.

        Returns None if no such line led to it. gcc prints the lines that required a template before the message,
        clang after it.
        """
        if self.is_user_file(message.main.file):
            return message.main
        leading = [
            line
            for line in (*reversed(message.context), *message.notes)
            if line.number and self.is_user_file(line.file)
        ]
        return min(leading, key=lambda line: line.text == _INCLUDES, default=None)

    def show(self, message: Message, location: tuple[str, int] | None = None) -> list[str]:
        """Returns the lines of a message as the user sees it, with the source line that it is about.

        `location` is used if the message has no line of the user.
        """
        main = message.main
        user_line = self._user_line(message)
        if main.file.startswith(EXPRESSION):
            return [_expression_error(main)]
        lines = [
            _located(line)
            for line in map(_cleaned, message.context)
            if self.is_user_file(line.file) and not _INTERNAL.search(line.text) and line.kind == ""
            if line.text != _INCLUDES or self.is_user_file(main.file)
        ]
        text = clean(main.text)
        file, number = location or (FILE, 0) if user_line is None else (user_line.file, user_line.number)
        if message.is_error:
            number = self._line_without_semicolon(file, number, text)
        lines.append(f"{file}({number}): {main.kind}: {text}" if number else f"{file}: {main.kind}: {text}")
        lines += self.quoted(file, number)
        lines += [f"    include <{HEADERS[name]}> for {name}" for name in _missing_names(main.text)]
        notes = [
            note
            for note in (_cleaned(line) for line in message.notes if line is not user_line)
            if self.is_user_file(note.file) and not _INTERNAL.search(note.text)
        ]
        for note in notes[:_MAX_NOTES]:
            expression = note.file.startswith(EXPRESSION)
            lines.append(_located(note) if expression else f"{note.file}({note.number}): note: {note.text}")
            lines += self.quoted(note.file, note.number)
        return lines

    def _line_without_semicolon(self, file: str, number: int, text: str) -> int:
        """Returns the line that lacks its semicolon if gcc named the next line's first word; otherwise `number`."""
        match = _MISSING_SEPARATOR.search(text)
        lines = self._texts.get(file, ())
        if match is None or not 0 < number <= len(lines) or not lines[number - 1].lstrip().startswith(match[1]):
            return number
        previous = next((n for n in range(number - 1, 0, -1) if lines[n - 1].strip()), number)
        ends = ("#", "//"), (";", "{", "}", "\\", "*/")
        line = lines[previous - 1].strip()
        return number if line.startswith(ends[0]) or line.endswith(ends[1]) else previous

    def quoted(self, file: str, number: int) -> list[str]:
        """Returns the user's source line, to be shown below a message; an empty list if it is not known."""
        lines = self._texts.get(file, ())
        return [f"    {lines[number - 1].rstrip()}"] if 0 < number <= len(lines) else []

    def unsupported(self, mark: str) -> tuple[str, str, int] | None:
        """Returns the feature that a message with `mark` names, and the file and line of the user's that use it.

        Returns None if there is no such message.
        """
        at = next((i for i, raw in enumerate(self.raw) if mark in raw and _LOCATION.match(raw)), None)
        if at is None:
            return None
        feature = self.raw[at].split(mark)[1].split('"')[0].strip()
        chain = [_INCLUDED.match(raw) for raw in self.raw[: at + 1]]
        for matches in (
            [_LOCATION.match(raw) for raw in reversed(self.raw[:at])],
            [_LOCATION.match(raw) for raw in self.raw[at:]],
            chain,
        ):
            for match in matches:
                if match is not None and match["file"] in self._texts:
                    return feature, match["file"], int(match["line"])
        return feature, FILE, 0


def _parse_line(raw: str) -> Line | None:
    match = _LOCATION.match(raw)
    if match is not None:
        kind = _KIND.match(match["rest"])
        text = match["rest"][kind.end() :] if kind else match["rest"].strip()
        return Line(match["file"], int(match["line"]), kind["kind"] if kind else "", text)
    match = _CONTEXT.match(raw)
    if match is not None:
        return Line(match["file"], 0, "", match["rest"])
    match = _INCLUDED.match(raw)
    if match is not None:
        return Line(match["file"], int(match["line"]), "", _INCLUDES)
    return None


def _located(line: Line) -> str:
    if line.file.startswith(EXPRESSION):
        return f"for the {line.file[1:-1]}"
    return f"{line.file}({line.number}): {line.text}" if line.number else f"{line.file}: {line.text}"


def _expression_error(line: Line) -> str:
    """Returns the text of an error in a name expression, which is not about a line of the source."""
    reason = clean(line.text)
    if "const auto" in reason or "'auto'" in reason:
        reason = "it is a template without arguments, or one of several functions"
    expression = line.file.removeprefix(EXPRESSION).removesuffix(">")
    return f"error: the name expression '{expression}' names no kernel or variable: {reason}"


def _missing_names(text: str) -> list[str]:
    names = [first or second for first, second in _MISSING.findall(text)]
    return [name for name in names if name in HEADERS]


def _cleaned(line: Line) -> Line:
    return Line(line.file, line.number, line.kind, clean(line.text))


def limited_warnings(messages: Messages) -> list[str]:
    """Returns the warnings of a source that compiles, each once, limited to the size of a log."""
    shown: dict[str, None] = {}
    size = 0
    warnings = messages.warnings()
    for number, warning in enumerate(warnings):
        text = "\n".join(messages.show(warning))
        if text in shown:
            continue
        size += len(text)
        if len(shown) == MAX_WARNINGS or size > MAX_WARNING_CHARACTERS:
            shown[f"({len(warnings) - number} more warnings are left out)"] = None
            break
        shown[text] = None
    return list(shown)
