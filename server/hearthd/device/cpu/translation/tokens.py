"""C++ tokens of a preprocessed translation unit, each with the place where its author wrote it.

Only text that the user wrote is tokenised: text that the preprocessor inserted from system headers (which have absolute
names, unlike the user's files) is skipped, so that the cost does not depend on the headers that a kernel includes.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_MARKER = re.compile(r'^[ \t]*#[ \t]*(?:line[ \t]+)?(\d+)[ \t]+"((?:[^"\\]|\\.)*)"([ \t0-9]*)$', re.MULTILINE)
_TOKEN = re.compile(
    r"""
    (?P<directive>^[ \t]*\#[^\n]*)
  | (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<string>(?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\(.*?\)(?P=fence)"|(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")
  | (?P<char>(?:u8|[uUL])?'(?:[^'\\\n]|\\.)+')
  | (?P<number>\.?\d(?:[eEpP][+-]|'[\w]|[\w.])*)
  | (?P<name>[A-Za-z_$]\w*)
  | (?P<op><%|%>|<:(?!:[^:>])|:>|::|->|\.\.\.|[^\s\w])
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)

_DIGRAPHS = {"<%": "{", "%>": "}", "<:": "[", ":>": "]"}
OPENING = {"(": ")", "[": "]", "{": "}"}


class Token(NamedTuple):
    """A token of a preprocessed text; `start` and `end` are its offsets."""

    kind: str  # name, number, string, char or op
    text: str
    start: int
    end: int


@dataclass
class SourceMap:
    """Origin of each offset of a preprocessed text."""

    text: str
    starts: list[int] = field(default_factory=list)
    origins: list[tuple[int, str, bool]] = field(default_factory=list)  # first line, file, True for a system header

    def __post_init__(self) -> None:
        self.starts.append(0)
        self.origins.append((1, "<start>", True))
        for match in _MARKER.finditer(self.text):
            self.starts.append(match.end() + 1)
            # The marker's flag 3 is not used: gcc also sets it in the user's own file, around expansions of macros.
            system = match[2].startswith(("/", "<"))
            self.origins.append((int(match[1]), match[2].removeprefix("./"), system))  # clang names headers ./name.h

    def location(self, offset: int) -> tuple[str, int]:
        """Returns the file and line in which the text at `offset` was written."""
        index = bisect.bisect_right(self.starts, offset) - 1
        line, file, _ = self.origins[index]
        return file, line + self.text.count("\n", self.starts[index], offset)

    def is_system(self, offset: int) -> bool:
        """True if the text at `offset` is from a system header."""
        return self.origins[bisect.bisect_right(self.starts, offset) - 1][2]

    def user_regions(self) -> Iterator[tuple[int, int]]:
        """Yields the ranges of offsets that hold text of the user's own files, not of system headers."""
        for index, start in enumerate(self.starts):
            end = self.starts[index + 1] if index + 1 < len(self.starts) else len(self.text)
            if not self.origins[index][2] and start < end:
                yield start, end


def tokenize(source: SourceMap) -> list[Token]:
    """Returns the user's tokens in order, without comments and directives."""
    tokens: list[Token] = []
    for start, end in source.user_regions():
        for match in _TOKEN.finditer(source.text, start, end):
            kind = match.lastgroup
            if kind == "fence":
                kind = "string"
            if kind is not None and kind not in ("directive", "comment"):
                text = match.group()
                tokens.append(Token(kind, _DIGRAPHS.get(text, text), match.start(), match.end()))
    return tokens


def matching(tokens: Sequence[Token], index: int, end: int) -> int:
    """Returns the index of the bracket that closes the one at `index`; `end - 1` if it is missing."""
    depth = 0
    for at in range(index, end):
        text = tokens[at].text
        if tokens[at].kind != "op":
            continue
        if text in OPENING:
            depth += 1
        elif text in (")", "]", "}"):
            depth -= 1
            if depth == 0:
                return at
    return end - 1


def matching_angle(tokens: Sequence[Token], index: int, end: int) -> int | None:
    """Returns the index of the `>` that closes the `<` at `index`; None if that is a comparison."""
    depth = 0
    at = index
    while at < end:
        text = tokens[at].text
        if text == "<":
            depth += 1
        elif text == ">":
            depth -= 1
            if depth == 0:
                return at
        elif text in OPENING:
            at = matching(tokens, at, end)
        elif text in (";", "}", ")", "]"):
            return None
        at += 1
    return None


def after_template(tokens: Sequence[Token], at: int, end: int) -> int:
    """Returns the index after the `template <...>` headers at `at`; that of a header that is never closed."""
    while at + 1 < end and tokens[at].text == "template" and tokens[at + 1].text == "<":
        closing = matching_angle(tokens, at + 1, end)
        if closing is None:
            break
        at = closing + 1
    return at
