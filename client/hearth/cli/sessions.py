"""`hearth sessions` lists the sessions on the node; `hearth sessions end ID` ends one."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from hearth.cli import connect_options
from hearth.cli.format import output
from hearth.cli.format.complaint import invalid_argument

if TYPE_CHECKING:
    from hearth.types import SessionInfo

_END = "end"


def add_to(commands: Any) -> None:
    """Adds the command and its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "sessions",
        help="list the sessions of the node, or end one",
        usage="%(prog)s [options] [TARGET]\n       %(prog)s end ID [options] [TARGET]",
        description="Lists the sessions that you may see, busiest first, or ends one. You may end sessions of your own "
        "tenant, or, with the right to administer, of any tenant. Everything that a session holds on the "
        "devices is freed with it. Opens no session.",
    )
    action = parser.add_argument("action", nargs="?", metavar="end", help="end the session with this ID")
    action.completions = (_END,)  # type: ignore[attr-defined] # for `completion`
    parser.add_argument("id", nargs="?", metavar="ID", help="session ID, as shown in the list")
    connect_options.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the sessions, or ends one. Raises `HearthError`."""
    session_id = _parse_action(arguments)
    with connect_options.open_admin(arguments) as admin:
        target = connect_options.target_text(admin.target)
        if session_id is not None:
            running = admin.end_session(session_id)
            text = f"session {session_id} has ended"
            if running:
                devices = f"device{'s'[: len(running) > 1]} {', '.join(map(str, running))}"
                text += (
                    f"; one of its kernels is still running on {devices}, and holds its memory until it "
                    "ends or the device process ends"
                )
            output.emit({"target": target, "ended": session_id, "running_on": running}, arguments.json, text)
            return 0
        sessions = sorted(admin.sessions(), key=lambda session: (-session.device_seconds, session.session_id))
    documents = [_document(session) for session in sessions]
    text = "" if arguments.json else _text(documents)
    output.emit({"target": target, "sessions": documents}, arguments.json, text)
    return 0


def _parse_action(arguments: argparse.Namespace) -> str | None:
    """Returns the ID after "end", or None. A single other word is taken as TARGET. Raises `ArgumentError`."""
    action: str | None = arguments.action
    if action == _END:
        if arguments.id is None:
            raise invalid_argument("no session ID was specified", "use `hearth sessions end ID`")
        return str(arguments.id)
    if arguments.id is not None:
        raise invalid_argument(
            f"{action!r} is not an action for a session",
            "use `hearth sessions [TARGET]` or `hearth sessions end ID [TARGET]`",
        )
    arguments.target = action
    return None


def _document(session: SessionInfo) -> dict[str, Any]:
    """Returns the session's JSON object, with the names of the status document."""
    return {
        "id": session.session_id,
        "client": session.client_name,
        "process": session.client_process,
        "tenant": session.tenant,
        "dedicated": session.isolation == "dedicated",
        "devices": list(session.devices),
        "device_seconds": session.device_seconds,
        "opened_unix": session.opened,
        "connected": session.connected,
        "lease_left_seconds": None if session.connected else session.lease_left,
    }


def _text(sessions: list[dict[str, Any]]) -> str:
    from hearth.cli.format.table import table
    from hearth.cli.top import lines

    if not sessions:
        return "no sessions"
    now = time.time()
    rows = [lines.session_cells(session, now) for session in sessions]
    return table(lines.SESSION_HEADER, rows, frozenset({1, 4}))
