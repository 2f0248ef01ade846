"""Progress is shown on request, on a terminal, and for long operations only."""

from __future__ import annotations

import gc
import io
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hearth
from hearth import progress
from tests.support.client.fake_daemon import FakeDaemon

BIG = 64 << 20


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=terminal))  # pytest replaces sys.stderr
    return terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def nobody_asked() -> Iterator[None]:
    yield
    assert not progress._Setting.enabled, "show_progress was left on"


def move(report: progress.Progress | None, clock: Clock, seconds: float, total: int = BIG) -> None:
    assert report is not None
    for part in range(1, 101):
        clock.now += seconds / 100
        report(total * part // 100, total)


def test_no_progress_is_shown_by_default(terminal: Terminal, clock: Clock) -> None:
    assert progress.reporter(None, "upload") is None
    assert progress.reporter(False, "upload") is None
    with hearth.show_progress():
        assert progress.reporter(False, "upload") is None, "the call itself disables it"
        assert progress.reporter(None, "upload") is not None
    assert progress.reporter(None, "upload") is None
    assert terminal.getvalue() == ""


def test_no_progress_is_shown_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stderr in (io.StringIO(), closed, None):
        monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=stderr))
        with hearth.show_progress():
            assert progress.reporter(None, "upload") is None
            assert progress.reporter(True, "upload") is None
            with progress.waiting("compile"):
                pass


def test_requested_progress_is_shown(terminal: Terminal, clock: Clock) -> None:
    move(progress.reporter(True, "upload"), clock, 1.0, 1000)
    lines = terminal.getvalue().split("\r")
    assert terminal.getvalue().endswith("1000 B, 1000 B/s \n") and lines[1].startswith("upload [..."), lines
    assert 8 <= len(lines) <= 13, "ten times a second"


def test_only_long_transfers_are_shown_by_default(terminal: Terminal, clock: Clock) -> None:
    with hearth.show_progress():
        move(progress.reporter(None, "upload"), clock, 0.4)  # too short to be shown
        move(progress.reporter(None, "upload"), clock, 9.0, 1 << 20)  # too small to be shown
        assert terminal.getvalue() == ""
        move(progress.reporter(None, "download"), clock, 2.0)
    lines = terminal.getvalue().split("\r")
    assert lines[1].startswith("download [#######") and lines[-1].endswith("64 MiB of 64 MiB, 32 MiB/s \n")


def test_on_and_off(terminal: Terminal) -> None:
    hearth.show_progress()
    assert progress._Setting.enabled
    with hearth.show_progress(False):
        assert not progress._Setting.enabled
    assert progress._Setting.enabled
    hearth.show_progress(False)


def test_interrupted_transfer_ends_its_line(terminal: Terminal, clock: Clock) -> None:
    report = progress.reporter(True, "upload")
    assert report is not None
    report(1, 4)
    del report
    gc.collect()
    assert terminal.getvalue().endswith("(interrupted)\n")


def test_a_closed_terminal_stops_no_transfer(terminal: Terminal, clock: Clock) -> None:
    report = progress.reporter(True, "upload")
    terminal.close()
    move(report, clock, 1.0)


def test_long_waits_are_shown(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = threading.Event()
    write = terminal.write
    monkeypatch.setattr(terminal, "write", lambda text: (drawn.set(), write(text))[1])
    with progress.waiting("compile", delay=0.01, interval=0.01):
        assert not drawn.wait(0.05), "it is off by default"
    with hearth.show_progress(), pytest.raises(KeyError), progress.waiting("compile", 0.01, 0.01):
        assert drawn.wait(10)
        raise KeyError
    assert terminal.getvalue().startswith("\rcompile: 0.0 s") and terminal.getvalue().endswith("s\n")
    assert not any(thread.name == "hearth-progress" for thread in threading.enumerate())


def test_a_notebook_has_one_output(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    shown: list[Any] = []

    class Handle:
        def update(self, said: Any, raw: bool) -> None:
            shown.append(said["text/plain"])

    def display(said: Any, raw: bool, display_id: bool) -> Handle:
        assert not shown and raw and display_id
        shown.append(said["text/plain"])
        return Handle()

    class OutStream:
        pass

    OutStream.__module__ = "ipykernel.iostream"
    ipython = types.ModuleType("IPython")
    ipython.display = types.SimpleNamespace(display=display)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)  # type: ignore[arg-type]
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=OutStream()))
    with hearth.show_progress():
        move(progress.reporter(None, "download"), clock, 2.0)
    assert len(shown) > 10 and "100%" in shown[-1] and "\r" not in "".join(shown)


def test_transfers_of_a_session(
    gpu: hearth.Device, daemon: FakeDaemon, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    monkeypatch.setattr(progress, "_MIN_BYTES", 1 << 20)
    host = np.ones(4 << 20, np.uint8)
    gpu.asarray(host).get()
    gpu.asarray(host, progress=False)
    assert terminal.getvalue() == ""
    with hearth.show_progress():
        x = gpu.asarray(host)
        np.testing.assert_array_equal(x.get(), host)
        x[:10].get()
    said = terminal.getvalue()
    assert said.count("\n") == 2 and "upload" in said and "download" in said
