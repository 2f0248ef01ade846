"""`hearth top`: in a pseudo-terminal, whose modes and screen it always restores at its end; and as plain output."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hearth
from hearth.cli import main
from hearth.endpoint.admin import AdminClient
from tests.support.daemon.harness import DaemonProcess, environment

ENTER, LEAVE, HOME = "\x1b[?1049h", "\x1b[?1049l", "\x1b[H"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_AS_A_SHELL_DOES = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
"""Makes the terminal the controlling terminal of the process: Ctrl-C in it is a signal."""
RUN = _AS_A_SHELL_DOES + "import sys; from hearth.cli import main; sys.exit(main.main(sys.argv[1:]))"
CRASH = (
    _AS_A_SHELL_DOES
    + """
import sys
from hearth.cli import main; from hearth.cli.top import frame
real, seen = frame.frame, []
def crashing(*arguments, **options):
    if seen:
        raise ZeroDivisionError("a bug")
    seen.append(1)
    return real(*arguments, **options)
frame.frame = crashing
sys.exit(main.main(sys.argv[1:]))
"""
)


class Terminal:
    """`hearth top` in a pseudo-terminal."""

    def __init__(self, *arguments: str, code: str = RUN, **variables: str) -> None:
        self._ours, self._theirs = pty.openpty()
        self.resize(100, 20)
        self.modes = termios.tcgetattr(self._theirs)
        self.written = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "top", "--interval", "0.1", *arguments],
            stdin=self._theirs, stdout=self._theirs, stderr=self._theirs, start_new_session=True,
            env=environment(TERM="xterm-256color", **variables),
        )  # fmt: skip

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def read(self, seconds: float) -> bool:
        """Adds new output to `written`; returns whether there was any."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        self.written += os.read(self._ours, 1 << 16).decode(errors="replace")
        return True

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + 30
        while not (found := condition()):
            assert time.monotonic() < deadline, f"{what} did not appear: {self.written[-2000:]!r}"
            self.read(0.1)
        return found

    def picture(self) -> list[str]:
        """Returns the lines of the last complete frame."""
        pictures = self.written.split(HOME)
        return (
            [_CONTROL.sub("", line) for line in pictures[-2].replace("\r", "").split("\n")] if len(pictures) > 2 else []
        )

    def shows(self, text: str) -> list[str]:
        """Waits for a frame that contains `text`; returns its lines."""
        found: list[str] = self.until(
            lambda: next(([*lines] for lines in [self.picture()] if text in " ".join(lines)), None), text
        )
        return found

    def ends(self, status: int) -> str:
        """Waits until the program ends; returns the screen after it was restored."""
        self.until(lambda: self.process.poll() is not None, "its end")
        while self.read(0):
            pass
        assert self.process.returncode == status, self.written[-2000:]
        assert self.written.count(ENTER) == self.written.count(LEAVE), "the screen is restored"
        for switched in ("?25", "?7"):
            assert self.written.rindex(f"\x1b[{switched}h") > self.written.rindex(f"\x1b[{switched}l")
        assert termios.tcgetattr(self._theirs) == self.modes, "so are its modes"
        return self.written.rpartition(LEAVE)[2].strip()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for end in (self._ours, self._theirs):
            os.close(end)


@contextlib.contextmanager
def top(*arguments: str, **options: str) -> Iterator[Terminal]:
    terminal = Terminal(*arguments, **options)
    try:
        yield terminal
    finally:
        terminal.close()


class Movable:
    """A daemon's sockets under other names, which a test can remove and restore."""

    def __init__(self, daemon: DaemonProcess, folder: Path) -> None:
        self._places = {folder / f"d.sock{end}": Path(f"{daemon.socket}{end}") for end in ("", ".call")}
        self.target = f"unix:{folder}/d.sock"
        self.come()

    def come(self) -> None:
        for place, real in self._places.items():
            place.symlink_to(real)

    def go(self) -> None:
        for place in self._places:
            place.unlink(missing_ok=True)


@pytest.fixture
def movable(daemon: DaemonProcess, tmp_path: Path) -> Movable:
    return Movable(daemon, tmp_path)


# ---- live ----


def test_live_display_through_resize_outage_and_quit(daemon: DaemonProcess, movable: Movable) -> None:
    """Sizes, sessions, a daemon that stops and starts again, Ctrl-Z, and the key that quits."""
    ordinals = {str(ordinal) for ordinal in daemon.ordinals()}
    with top(movable.target) as terminal:
        lines = terminal.shows("ready; hearthd")
        assert lines[3].startswith("DEVICE") and len(lines) <= 20
        # busiest device first: other tests may have left work
        terminal.until(
            lambda: ordinals <= {line.split()[0] for line in terminal.picture()[4:] if line.split()}, "all devices"
        )
        with daemon.connect(name="\x1b[2Jhostile\x07") as node:
            terminal.shows(node.session_id)
            terminal.shows("?[2Jhostile?")
        terminal.resize(50, 6)
        lines = terminal.until(lambda: len(each := terminal.picture()) == 6 and each, "a smaller picture")
        terminal.until(lambda: all(len(line) <= 50 for line in terminal.picture()), "narrower lines")
        terminal.resize(150, 30)
        terminal.until(lambda: len(terminal.picture()) > 6, "a larger picture")

        movable.go()
        terminal.shows("unreachable since")
        terminal.shows("the socket does not exist")
        movable.come()
        terminal.shows("ready; hearthd")

        terminal.process.send_signal(signal.SIGTSTP)  # no shell would continue it here, so it does not stop itself
        terminal.until(lambda: terminal.written.count(ENTER) == 2, "the screen again")
        terminal.shows("ready; hearthd")
        terminal.press("xq")
        assert terminal.ends(0) == ""


@pytest.mark.parametrize("way", ["ctrl_c", "sigterm"])
def test_terminal_is_restored_after_signals(daemon: DaemonProcess, way: str) -> None:
    with top(daemon.grpc, NO_COLOR="1") as terminal:
        terminal.shows("ready; hearthd")
        assert "\x1b[1" not in terminal.written, "colours are disabled"
        if way == "ctrl_c":
            terminal.press("\x03")
            assert terminal.ends(130) == "hearth: interrupted"
        else:
            terminal.process.terminate()
            assert terminal.ends(128 + signal.SIGTERM) == ""


def test_terminal_is_restored_after_crash(daemon: DaemonProcess) -> None:
    with top(daemon.unix, code=CRASH) as terminal:
        assert "ZeroDivisionError: a bug" in terminal.ends(1)


def test_absent_daemon_leaves_the_screen_unchanged() -> None:
    with top("unix:/nowhere/at.sock") as terminal:
        terminal.until(lambda: terminal.process.poll() is not None, "its end")
        terminal.read(0)
        assert terminal.process.returncode == 1 and ENTER not in terminal.written
        assert terminal.written.startswith("hearth: no daemon answers at unix:/nowhere/at.sock")


# ---- plain output ----


def test_plain_output_prints_frames_one_after_another(daemon: DaemonProcess, capsys: Any) -> None:
    assert main.main(["top", "--iterations", "3", "--interval", "0.1", daemon.unix]) == 0
    out = capsys.readouterr().out
    assert out.count("ready; hearthd") == 3 and out.count("DEVICE ") >= 3 and "\x1b" not in out


def test_one_json_document_on_each_line(daemon: DaemonProcess, gpu: hearth.Device, capsys: Any) -> None:
    """Each line has rates, which the client computes from counters."""
    ended = threading.Event()

    def work() -> None:
        x = gpu.zeros(1 << 16)
        while not ended.is_set():
            x.get()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert main.main(["top", "--iterations", "2", "--interval", "0.5", "--json", daemon.grpc]) == 0
    finally:
        ended.set()
        worker.join()
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(documents) == 2
    for found in documents:
        assert found["schema"] == 1 and found["gone"] is None and found["seconds"] > 0
        first, *others = found["devices"]
        assert first["rates"]["commands_per_second"] > 0
        assert all(other["rates"]["commands_per_second"] == 0 for other in others)
        assert first["rates"]["sent_bytes_per_second"] > 0 and first["rates"]["busy_ratio"] > 0
        assert first["ordinal"] == 0
        (session,) = (each for each in found["sessions"] if each["devices"] == [0])
        assert session["device_seconds_per_second"] > 0


def test_exit_status_reports_an_unreachable_daemon(movable: Movable, capsys: Any) -> None:
    """Later frames and the exit status report that the daemon is unreachable."""
    real = AdminClient.status

    def once(asker: AdminClient) -> dict[str, Any]:
        found = real(asker)
        movable.go()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdminClient, "status", once)
        status = main.main(["top", "--once", "--interval", "0.1", "--json", movable.target])
    found = json.loads(capsys.readouterr().out)
    assert status == 1 and "the socket does not exist" in found["gone"]["why"] and found["gone"]["since_unix"] > 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--interval", "0"], "above 0"),
        (["--interval", "0.01"], "below the minimum interval"),
        (["--iterations", "0"], "not a number of updates"),
        (["--once", "--iterations", "2"], "not allowed with"),
    ],
)
def test_wrong_use(arguments: list[str], says: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["top", *arguments])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and says in line


def test_output_without_a_reader(daemon: DaemonProcess) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "hearth.cli.main", "top", "--interval", "0.1", daemon.unix],
            stdout=closed, stderr=subprocess.PIPE, text=True, env=environment(), timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")
