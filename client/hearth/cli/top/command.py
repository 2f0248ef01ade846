"""`hearth top`: shows a daemon's activity, refreshed repeatedly."""

from __future__ import annotations

import argparse
import os
import queue
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from hearth.cli import connect_options
from hearth.cli.format import output
from hearth.cli.format.complaint import one_line
from hearth.errors import ClosedError, HearthError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hearth.cli.top.frame import Outage
    from hearth.cli.top.rates import Document
    from hearth.endpoint.admin import AdminClient

_SHORTEST_S = 0.1
_HANGS_S = 3.0
"""Seconds without an answer after which the screen reports that the daemon does not answer."""
_REDRAW_S = 1.0
_QUIT = frozenset("qQ\x04")


def add_to(commands: Any) -> None:
    """Adds the command and its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "top",
        help="show the activity of the daemon, live",
        description="Shows devices and sessions repeatedly, sorted by the device time used since the last update. "
        "Press q to quit. If the daemon becomes unreachable, the command waits for it. If stdout is not a "
        "terminal, and with --once, --iterations or --json, each update is printed below the last; the "
        "first one appears after one interval. Opens no session.",
    )
    parser.add_argument(
        "--interval", type=_interval, default=1.0, metavar="SECONDS", help="time between updates (%(default)g)"
    )
    number = parser.add_mutually_exclusive_group()
    number.add_argument("--iterations", type=_count, metavar="N", help="quit after N updates")
    number.add_argument("--once", dest="iterations", action="store_const", const=1, help="print one update")
    connect_options.add_arguments(parser, json_help="print one JSON document per line, with rates")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Shows frames until the user ends the command. Raises `HearthError` if no daemon answers at first."""
    plain = arguments.json or arguments.iterations is not None
    with connect_options.open_admin(arguments) as admin:
        first = admin.status()
        if plain or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
            return _print(arguments, admin, first)
        return _live(admin, first, arguments.interval)


class View:
    """The last two documents, and the time since which no new ones have arrived.

    Pure, except for the clock values that are passed in.
    """

    def __init__(self, first: Document, at: float) -> None:
        self.before: Document | None = None
        self.now = first
        self.outage: Outage | None = None
        self._answered = at

    def record_answer(self, document: Document, at: float) -> None:
        """Records that the daemon answered with `document` at the time `at`."""
        self.before, self.now = self.now, document
        self.outage, self._answered = None, at

    def record_failure(self, reason: str, at: float) -> None:
        """Records that the daemon did not answer at the time `at`, with the reason."""
        from hearth.cli.top.frame import Outage

        since = self._answered if self.outage is None else self.outage.since
        self.outage, self.before = Outage(reason, since), None

    def check_overdue(self, at: float, interval: float) -> None:
        """Records a missing answer if neither an answer nor an error has arrived in time."""
        if self.outage is None and at - self._answered > interval + _HANGS_S:
            self.record_failure("the daemon has not answered since.", at)


# ---- frames printed one below the other ----


def _print(arguments: argparse.Namespace, admin: AdminClient, first: Document) -> int:
    view, printed = View(first, time.time()), 0
    next_update = time.monotonic()
    while arguments.iterations is None or printed < arguments.iterations:
        next_update = max(next_update + arguments.interval, time.monotonic())
        time.sleep(next_update - time.monotonic() if next_update > time.monotonic() else 0.0)
        try:
            view.record_answer(admin.status(), time.time())
        except HearthError as error:
            view.record_failure(one_line(str(error)), time.time())
        if arguments.json:
            output.print_json(_document(view, connect_options.target_text(admin.target)), indent=None)
        else:
            _print_frame(view, first=printed == 0)
        printed += 1
    return 0 if view.outage is None else 1


def _print_frame(view: View, *, first: bool) -> None:
    lines = _lines(view, output.columns())
    print("\n".join(lines if first else ["", *lines]), flush=True)


def _lines(view: View, columns: int, rows: int | None = None) -> list[str]:
    """Returns the lines of a frame, in colour if stdout shows colours."""
    from hearth.cli.top.frame import frame

    colour = output.in_colour()
    shown = frame(view.before, view.now, outage=view.outage, at=time.time(), columns=columns, rows=rows)
    return [line.render(columns, colour) for line in shown]


def _document(view: View, target: str) -> dict[str, Any]:
    from hearth.cli.top import rates

    if view.outage is not None:
        return {
            "target": target,
            "time_unix": time.time(),
            "gone": {"since_unix": view.outage.since, "why": view.outage.reason},
        }
    devices, sessions = rates.device_rates(view.before, view.now), rates.session_rates(view.before, view.now)
    shown = rates.busiest_first(view.now, devices, sessions)
    return {
        "target": target,
        "time_unix": time.time(),
        "gone": None,
        "seconds": rates.elapsed(view.before, view.now),
        **shown,
        "devices": [
            {**entry, "rates": dict(zip(rates.NAMES, devices[entry["ordinal"]], strict=True))}
            for entry in shown["devices"]
        ],
        "sessions": [
            {**entry, "device_seconds_per_second": sessions[entry["id"]]} for entry in shown.get("sessions", ())
        ],
    }


# ---- live ----


class _Watch:
    """Polls the daemon in another thread, so that keys and resizes never wait for the daemon."""

    def __init__(self, admin: AdminClient, interval: float, wake: Callable[[], None]) -> None:
        self._admin = admin
        self._interval = interval
        self._wake = wake
        self._ended = threading.Event()
        self._results: queue.SimpleQueue[tuple[float, Document | HearthError]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hearth-top", daemon=True)
        self._thread.start()

    def pop_all(self) -> Iterator[tuple[float, Document | HearthError]]:
        """Yields and removes the answers and errors since the last call, each with its time."""
        while not self._results.empty():
            yield self._results.get()

    def end(self) -> None:
        """Cancels the call in progress and ends the thread."""
        self._ended.set()
        self._admin.close()
        self._thread.join(1.0)

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            result: Document | HearthError
            try:
                result = self._admin.status()
            except ClosedError:
                return
            except HearthError as error:
                result = error
            self._results.put((time.time(), result))
            self._wake()


def _live(admin: AdminClient, first: Document, interval: float) -> int:
    from hearth.cli.top.screen import Screen

    view = View(first, time.time())
    with Screen() as screen:
        watch = _Watch(admin, interval, screen.wake)
        try:
            while True:
                for at, result in watch.pop_all():
                    if isinstance(result, HearthError):
                        view.record_failure(one_line(str(result)), at)
                    else:
                        view.record_answer(result, at)
                view.check_overdue(time.time(), interval)
                screen.draw(_lines(view, *screen.size))
                if _QUIT & set(screen.wait(_REDRAW_S)):
                    return 0
        except EOFError:
            return 0  # the terminal has been closed
        finally:
            watch.end()


def _interval(text: str) -> float:
    value = connect_options.seconds(text)
    if value < _SHORTEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is below the minimum interval, {_SHORTEST_S:g} s")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < len(text) <= 9 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of updates: 1, 2, ...")
    return int(text)
