"""Check of source text for directives that would make the compiler read files of the host.

The sandbox prevents a compiler from reading other files (`hearthd.device.platform.sandbox`). This check protects hosts
whose kernel has no such sandbox, and describes the error in the user's terms. It errs on the side of refusing: a
directive counts wherever it is, even in a block comment or after `#if 0`. The only exception are lines that are a `//`
comment in every reading of the source.

Directives are found in every form: with spaces and comments inside, with digraphs, with lines that are spliced in the
middle of a word. Compilers differ in what they treat as a splice (trailing spaces, trigraphs), so each reading is
checked. File names produced by macros cannot be determined, and are refused; macros that only the compiler's own
headers define cannot be the user's, and are ignored.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from hearth_proto.reasons import Reason, Refusal

SOURCE = "kernel.cu"
"""File name of the source in compiles."""

MAX_NAME = 1024

FIX = 'send the header along and include it by a plain name: headers={"name.h": text} and #include "name.h"'

_MISSING_HEADER = re.compile(r"(?:cannot|could not) open source file|error: [^\n]*No such file|file not found")

_COMMENT_LINE = re.compile(r"^[ \t]*//[^\n]*$", re.MULTILINE)
_SPLICES = (
    re.compile(r"\\\r?\n"),
    re.compile(r"\\[ \t\v\f\r]*\n"),
    re.compile(r"(?:\\|\?\?/)[ \t\v\f\r]*\n"),
)

# The name of a directive follows `#`, or a comment that may follow `#`.
_START = r"(?:\#|%:|\?\?=|\*/)[ \t\v\f\r]*"
_INCLUDE = re.compile(_START + r"(include_next|include|import|embed)(?![A-Za-z0-9_])")
_QUERY = re.compile(r"\b__has_(?:include_next|include|embed)\b")
_LINE = re.compile(_START + r"(?:line(?![A-Za-z0-9_])|(?=\d))")
_DEFINE = re.compile(_START + r"define(?![A-Za-z0-9_])")
_CONDITION = re.compile(_START + r"(?:el)?if\b")
_ABSOLUTE = re.compile(r'["<]/(?![*/])[^\n">]*')
_OTHER_READS = re.compile(r"\bGCC[ \t]+dependency\b|\bpch_preprocess\b|\.incbin\b")
_IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_NUMBER = re.compile(r"\d[A-Za-z0-9_']*")
_NAME = re.compile(r'"([^"\n]*)"|<([^>\n]*)>')
_BLANK = re.compile(r"[ \t\v\f\r]*")

_LONGEST_COMMENT = 4096
"""Longest comment between the words of a directive, in characters: a limit for the search."""


class IncludeFinding(NamedTuple):
    """A directive that reads, or may read, a file of the host.

    `directive` is the text of the directive, `name` the file's name, or empty.
    """

    file: str
    line: int
    directive: str
    name: str


def check(
    code: str, headers: Mapping[str, str], options: Collection[str] = (), name_expressions: Collection[str] = ()
) -> None:
    """Raises Refusal(COMPILE_FAILED) for the first part of a source or its headers that names a file of the host."""
    for name in headers:
        check_name(name)
    for option in options:
        if "\n" in option or "\0" in option:
            raise Refusal(
                Reason.COMPILE_FAILED,
                f"The compiler option {option!r} has more than one line.",
                fix="write each option in one line",
                details={"requested": option, "log": ""},
                fields=["options"],
            )
    texts = {**headers, SOURCE: code}
    words = [word for option in options for word in _IDENTIFIER.findall(option)]
    defined = {*words, *(word[1:] for word in words if word[0] == "D")}  # -DNAME and -D NAME
    readings = {file: list(_readings(text)) for file, text in texts.items()}
    for collect in (_collect_macros, _findings):  # a macro defined in any file may be used in any file
        for file, file_readings in readings.items():
            for reading in file_readings:
                finding = _first_finding(collect, file, reading, defined)
                if finding is not None:
                    raise _refusal(finding)
    for expression in name_expressions:
        if "\n" in expression or "#" in expression:
            raise Refusal(
                Reason.COMPILE_FAILED,
                f"The name expression {expression!r} is not a name.",
                fix='write names as the source would, e.g. "scale<float>"',
                details={"requested": expression, "log": ""},
                fields=["name_expressions"],
            )


def hint(refusal: Refusal) -> Refusal:
    """Returns the refusal; if the compiler missed a header, with advice on how to send headers."""
    if refusal.reason is Reason.COMPILE_FAILED and _MISSING_HEADER.search(refusal.details.get("log", "")):
        refusal.fix = f"{FIX}; {refusal.fix}" if refusal.fix else FIX
    return refusal


def check_name(name: str) -> None:
    """Raises Refusal(COMPILE_FAILED) for a header name that leads out of the directory of headers."""
    if leads_outside(name) or not name or len(name) > MAX_NAME or any(sign in name for sign in '\0\n">'):
        raise Refusal(
            Reason.COMPILE_FAILED,
            f"The header name {name[:MAX_NAME]!r} leads out of its directory, or is not a name.",
            fix="name headers as the source includes them, relative and without '..'",
            details={"log": "", "header": name[:MAX_NAME]},
            fields=["headers"],
        )


def leads_outside(name: str) -> bool:
    """True if an include of that name could read a file that was not sent with the source."""
    return name.strip().startswith("/") or "\\" in name or ".." in name.split("/")


class _Reading(NamedTuple):
    """A source with its spliced lines joined; `cuts` are the positions of the joins."""

    text: str
    cuts: list[int]

    def line(self, position: int) -> int:
        return 1 + self.text.count("\n", 0, position) + bisect.bisect_right(self.cuts, position)


def _readings(text: str) -> Iterator[_Reading]:
    texts: set[str] = set()
    text = _COMMENT_LINE.sub(_without_comment, text)
    for splice in _SPLICES:
        parts: list[str] = []
        cuts: list[int] = []
        at = length = 0
        for match in splice.finditer(text):
            parts.append(text[at : match.start()])
            length += match.start() - at
            cuts.append(length)
            at = match.end()
        joined = "".join((*parts, text[at:]))
        if joined not in texts:
            texts.add(joined)
            yield _Reading(joined, cuts)


def _without_comment(match: re.Match[str]) -> str:
    """Returns an empty string for a line that is a comment in every reading of the source, otherwise the line."""
    line = match[0].rstrip("\r")
    before = match.string[max(0, match.start() - 256) : max(0, match.start() - 1)].rstrip(" \t\v\f\r")
    ends_block = "*/" in line
    spliced = line.rstrip(" \t\v\f\r").endswith("\\") or "??" in line or "\r" in line
    continues = before.endswith(("\\", "??/")) or (not before and match.start() > 256)
    return match[0] if ends_block or spliced or continues else ""


def _first_finding(
    search: Callable[[str, _Reading, set[str]], Iterator[IncludeFinding]],
    file: str,
    reading: _Reading,
    defined: set[str],
) -> IncludeFinding | None:
    try:
        return next(search(file, reading, defined), None)
    except _UnfinishedDirective as error:
        return IncludeFinding(file, reading.line(error.args[0]), "#: a directive after a long comment", "")


def _findings(file: str, reading: _Reading, defined: set[str]) -> Iterator[IncludeFinding]:
    text = reading.text
    for match in _INCLUDE.finditer(text):
        yield from _operand_findings(file, reading, f"#{match[1]}", match.start(), match.end(), defined)
    for match in _LINE.finditer(text):
        yield from _line_findings(file, reading, match)
    for match in _OTHER_READS.finditer(text):
        yield IncludeFinding(file, reading.line(match.start()), match[0], "")
    at = 0
    for line in text.split("\n"):
        if "__has_" in line:
            yield from _query_findings(file, reading, at, line, defined)
        absolute = _ABSOLUTE.search(line)
        condition = _CONDITION.search(line) if absolute else None
        if absolute and condition and condition.end() <= absolute.start():
            yield IncludeFinding(file, reading.line(at), f"#if {absolute[0]}", absolute[0][1:])
        at += len(line) + 1


def _query_findings(file: str, reading: _Reading, at: int, line: str, defined: set[str]) -> Iterator[IncludeFinding]:
    """Yields the findings of `__has_include(...)` in the line that starts at `at`.

    The bare word without parentheses names no file.
    """
    for match in _QUERY.finditer(line):
        after = _skip(reading.text, at + match.end())
        if reading.text.startswith("(", after):
            yield from _operand_findings(file, reading, match[0], at + match.start(), after + 1, defined)
        elif re.search(r"\bdefine\b", line[: match.start()]):
            yield IncludeFinding(file, reading.line(at), f"#define of {match[0]}", "")
            return


def _operand_findings(
    file: str, reading: _Reading, directive: str, start: int, position: int, defined: set[str]
) -> Iterator[IncludeFinding]:
    """Yields a finding if the operand of an include names a file of the host, or is a macro that may name one."""
    text = reading.text
    position = _skip(text, position)
    literal = _NAME.match(text, position)
    if literal is not None:
        name = literal[1] if literal[1] is not None else literal[2]
        if leads_outside(name):
            yield IncludeFinding(file, reading.line(start), f"{directive} {literal[0]}", name)
        return
    word = _IDENTIFIER.match(text, position)
    if word is None:
        return  # no compiler would follow this
    after = _skip(text, word.end())
    if word[0].startswith("_") or word[0] in defined or text[after : after + 1] in ("(", '"'):
        yield IncludeFinding(file, reading.line(start), f"{directive} {word[0]}", "")


def _line_findings(file: str, reading: _Reading, match: re.Match[str]) -> Iterator[IncludeFinding]:
    """Yields the findings of `#line 1 "file"`, with or without the word `line`.

    A compiler may quote the named file, or treat the lines after the directive as part of it.
    """
    text = reading.text
    number = _NUMBER.match(text, _skip(text, match.end()))
    after = _skip(text, number.end() if number else match.end())
    literal = _NAME.match(text, after)
    if literal is not None and literal[1] is not None:
        if leads_outside(literal[1]) or literal[1].startswith("<"):
            yield IncludeFinding(file, reading.line(match.start()), f"#line {literal[0]}", literal[1])
    elif _IDENTIFIER.match(text, after) and "line" in match[0]:
        yield IncludeFinding(file, reading.line(match.start()), "#line of a macro", "")


def _skip(text: str, position: int) -> int:
    """Returns the position after blanks and comments; a directive may continue after a comment of several lines.

    Raises `_UnfinishedDirective`.
    """
    while True:
        blank = _BLANK.match(text, position)
        assert blank is not None
        position = blank.end()
        if not text.startswith("/*", position):
            return position
        end = text.find("*/", position + 2, position + _LONGEST_COMMENT)
        if end < 0:
            raise _UnfinishedDirective(position)
        position = end + 2


class _UnfinishedDirective(Exception):
    """A directive whose rest follows a comment that is too long, or has no end."""


def _collect_macros(_file: str, reading: _Reading, defined: set[str]) -> Iterator[IncludeFinding]:
    """Adds the macros that a source defines to `defined`; yields no findings."""
    for match in _DEFINE.finditer(reading.text):
        word = _IDENTIFIER.match(reading.text, _skip(reading.text, match.end()))
        if word is not None:
            defined.add(word[0])
    yield from ()


def _refusal(finding: IncludeFinding) -> Refusal:
    location = f"{finding.file}({finding.line})"
    if finding.name:
        message = f"{finding.directive} names a file of the host, and the compiler does not read files of the host"
    elif finding.directive.startswith(("#", "__has")):
        message = (
            f"{finding.directive}: the file cannot be determined, and the compiler does not read files of the host"
        )
    else:
        message = f"{finding.directive} would read a file of the host, which the compiler does not do"
    return Refusal(
        Reason.COMPILE_FAILED,
        f"{location}: {message}.",
        fix=FIX,
        details={
            "include": finding.name or finding.directive,
            "file": finding.file,
            "line": finding.line,
            "log": f"{location}: error: {message}",
        },
    )
