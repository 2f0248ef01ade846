"""Untrusted names on a terminal: no character moves the cursor, and columns are counted as terminals do."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.cli.format.complaint import one_line
from hearth.cli.format.printable import fit, printable, width
from hearth.cli.format.table import table

TEXT = st.lists(st.integers(0, 0x10FFFF).map(chr)).map("".join)
HOSTILE = "\x1b[2J\x1b]0;title\x07\r\n\x00\x9b31m\u202egnp\u2028\u200b\ud800\ue000"


def test_cursor_movements_are_not_printed() -> None:
    shown = printable(HOSTILE)
    assert shown == "?[2J?]0;title?  ??31m?gnp ???"
    assert printable("caf\u00e9 \u65e5\u672c") == "caf\u00e9 \u65e5\u672c" and printable(None) == "None"


def test_marks_that_grow_over_other_lines_are_bounded() -> None:
    assert printable("a" + "\u0301" * 50) == "a\u0301\u0301"
    assert printable("\u0301x") == "?x", "a mark alone would combine with the text before the name"


@given(TEXT)
def test_any_text(text: str) -> None:
    shown = printable(text)
    assert not {unicodedata.category(each) for each in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert printable(shown) == shown


@given(TEXT, st.integers(0, 40))
def test_text_is_cut_to_the_width(text: str, columns: int) -> None:
    shown = printable(text)
    cut = fit(shown, columns)
    assert width(cut) <= columns
    assert cut == shown or width(shown) > columns


@pytest.mark.parametrize(
    ("text", "columns"), [("abc", 3), ("", 0), ("\u65e5\u672c", 4), ("\uff21", 2), ("e\u0301", 1), ("\U0001f600", 2)]
)
def test_columns(text: str, columns: int) -> None:
    assert width(text) == columns


def test_cut_text_ends_with_dots() -> None:
    assert fit("abcdefgh", 8) == "abcdefgh" and fit("abcdefghi", 8) == "abcde..."
    assert fit("\u65e5\u672c\u8a9e\u65e5\u672c\u8a9e", 8) == "\u65e5\u672c..." and fit("abcd", 2) == "ab"


def test_columns_of_a_table_are_aligned() -> None:
    rows = [["\u65e5\u672c\u8a9e", "1"], ["abc", "22"]]
    lines = table(["NAME", "N"], rows, frozenset({1})).splitlines()
    assert len({width(line) for line in lines}) == 1 and lines[1].endswith(" 1")


def test_a_complaint_cannot_break_a_screen_either() -> None:
    assert one_line("bad\x1b[2J \x07name\nhere") == "bad?[2J ?name here"
