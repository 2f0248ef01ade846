"""Untrusted text on a terminal: a client chooses its own name, which may contain characters that disturb a screen."""

from __future__ import annotations

import unicodedata

CUT = "..."
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
"""Unicode categories that are not printed: controls (with which escape sequences begin), formats (among them those that
change the direction of writing), surrogates, private use, unassigned, and line and paragraph separators."""
_NO_WIDTH = frozenset(("Mn", "Me"))
_WIDE = frozenset("WF")
_MAX_MARKS = 2
"""Maximum number of combining marks on one letter: more would extend over the adjacent lines."""


def printable(text: object) -> str:
    """Returns `text` on one line, with ``?`` instead of each unprintable character."""
    shown: list[str] = []
    marks = 0
    for character in str(text):
        category = unicodedata.category(character)
        marks = marks + 1 if category in _NO_WIDTH else 0
        if character.isspace():
            shown.append(" ")
        elif category in _HIDDEN or (marks and not shown):
            shown.append("?")
        elif marks <= _MAX_MARKS:
            shown.append(character)
    return "".join(shown)


def width(text: str) -> int:
    """Returns the number of columns that printable text takes on a terminal (Unicode Standard Annex 11)."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def fit(text: str, columns: int) -> str:
    """Returns printable text, shortened if it is wider than `columns`."""
    if width(text) <= columns:
        return text
    room = columns - len(CUT)
    end = CUT if room > 0 else ""
    remaining = room if room > 0 else columns
    characters: list[str] = []
    for character in text:
        remaining -= _columns(character)
        if remaining < 0:
            break
        characters.append(character)
    return "".join(characters) + end


def _columns(character: str) -> int:
    if unicodedata.category(character) in _NO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1
