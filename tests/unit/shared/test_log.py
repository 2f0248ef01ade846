"""The log as text: external text can neither control a terminal nor produce a separate line."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import pytest
import structlog

from hearthd.shared import log


@pytest.fixture
def console() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    log.configure("info", "console")
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_control_characters_are_escaped(console: None, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "a\x1b]0;owned\x07\x1b[2J\r\n2030-01-01 [info] forged\x9b31m\u202eb\u2028\udcff"
    log.configure("info", "console")
    structlog.get_logger("x").warning(
        "http_refused", peer=evil, listed=[evil], event_too=evil.encode("utf-8", "ignore")
    )
    structlog.get_logger("x").warning(evil)
    logging.getLogger("library").warning("said %s", evil)
    try:
        raise ValueError(evil)
    except ValueError:
        structlog.get_logger("x").exception("failed")
    sys.stderr.flush()
    text = capsys.readouterr().err
    assert r"\x1b]0;owned\x07" in text and r"\u202e" in text and r"\udcff" in text
    assert not [each for each in text if not each.isprintable() and each != "\n"], repr(text)
    lines = text.splitlines()
    assert [line for line in lines if "said a" in line and "forged" in line], "one line"
    assert [
        line for line in lines if line.startswith("ValueError: a")
    ] and "Traceback (most recent call last):" in lines


def test_printable_text_is_unchanged() -> None:
    assert log.printable("größe 🔥 µs") == "größe 🔥 µs"
    assert log.printable("a\tb\nc", also="\n\t") == "a\tb\nc"
    assert log.printable("a\tb\x7f") == "a\\tb\\x7f"
