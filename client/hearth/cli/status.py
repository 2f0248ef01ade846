"""`hearth status`: shows a daemon's state. The exit status says whether the daemon is ready."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from hearth.cli import connect_options
from hearth.cli.format import output
from hearth.cli.format.complaint import complain

if TYPE_CHECKING:
    from hearth.cli.top.rates import Document
    from hearth.endpoint.admin import AdminClient

_POLL_S = 0.25
_FAULTS_SHOWN = 5


def add_to(commands: Any) -> None:
    """Adds the command and its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "status",
        help="show the state of the daemon and its devices",
        description="Shows a daemon, its devices and its latest faults. Opens no session, so it also works while the "
        "daemon is draining. Exit status 1: no daemon answers, or it is not ready.",
    )
    parser.add_argument(
        "--wait",
        type=connect_options.seconds,
        metavar="SECONDS",
        help="wait up to this time until the daemon is ready",
    )
    connect_options.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the status; returns 1 if the daemon is not ready. Raises `HearthError`."""
    with connect_options.open_admin(arguments) as admin:
        document = admin.status() if arguments.wait is None else _wait_until_ready(admin, arguments.wait)
        target = connect_options.target_text(admin.target)
    text = "" if arguments.json else status_text(document, target, output.columns(), output.in_colour())
    output.emit({"target": target, **document}, arguments.json, text)
    if document.get("ready"):
        return 0
    if arguments.wait is not None:
        sys.stdout.flush()
        complain(f"the daemon is not ready after {arguments.wait:g} s.")
    return 1


def _wait_until_ready(admin: AdminClient, seconds: float) -> Document:
    """Returns the first document of a ready daemon, or the last document before the timeout.

    Raises the last error if no daemon answered in time: one may be starting.
    """
    from hearth.errors import ConnectError, TimeoutError

    deadline = admin.deadline = time.monotonic() + seconds
    while True:
        try:
            document = admin.status()
            if document.get("ready") or time.monotonic() >= deadline:
                return document
        except (ConnectError, TimeoutError):
            if time.monotonic() >= deadline:
                raise
        time.sleep(max(0.0, min(_POLL_S, deadline - time.monotonic())))


def status_text(document: Document, target: str, columns: int, colour: bool) -> str:
    """Formats the status document as text. Pure."""
    from hearth.cli.format.printable import printable
    from hearth.cli.top import lines, rates

    state = lines.state(document)
    tenants = len(document.get("tenants", ()))
    top = [
        lines.ScreenLine(f"{printable(document.get('node', '?'))}: {state.text}", (output.BOLD, *state.codes)),
        lines.ScreenLine(f"{lines.daemon(document)}, at {printable(target)}"),
        lines.ScreenLine(f"sessions: {lines.session_count(document)}; tenants: {tenants}"),
        lines.ScreenLine(),
    ]
    shown = [
        line.render(columns, colour)
        for line in top + lines.devices(document, rates.device_rates(None, document), columns)
    ]
    faults = lines.faults(document, _FAULTS_SHOWN)
    if faults:
        shown += ["", output.paint("latest faults", (output.BOLD,), colour)]
        shown += [output.paint(line.text, line.codes, colour) for line in faults]
    return "\n".join(shown)
