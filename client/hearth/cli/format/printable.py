"""Text of others on a terminal: what a client calls itself is its own business, and may be meant to break a screen."""

from __future__ import annotations

import unicodedata

CUT = "..."
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
"""Categories: controls (escape sequences begin with one), formats (those that turn the direction of writing among
them), surrogates, private use, what is not assigned, ends of lines."""
_NO_WIDTH = frozenset(("Mn", "Me"))
_WIDE = frozenset("WF")
_MOST_MARKS = 2
"""Marks on one letter: more grow over the lines around it."""


def printable(text: object) -> str:
    """`text` on one line, whatever is in it: what does not print stands as ``?``."""
    shown: list[str] = []
    marks = 0
    for character in str(text):
        category = unicodedata.category(character)
        marks = marks + 1 if category in _NO_WIDTH else 0
        if character.isspace():
            shown.append(" ")
        elif category in _HIDDEN or (marks and not shown):
            shown.append("?")
        elif marks <= _MOST_MARKS:
            shown.append(character)
    return "".join(shown)


def width(text: str) -> int:
    """Columns that a terminal gives to printable text (Unicode Standard Annex 11)."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def fit(text: str, columns: int) -> str:
    """Printable text, cut where it is wider than `columns`."""
    if width(text) <= columns:
        return text
    room = columns - len(CUT)
    end = CUT if room > 0 else ""
    left = room if room > 0 else columns
    kept: list[str] = []
    for character in text:
        left -= _columns(character)
        if left < 0:
            break
        kept.append(character)
    return "".join(kept) + end


def _columns(character: str) -> int:
    if unicodedata.category(character) in _NO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1
