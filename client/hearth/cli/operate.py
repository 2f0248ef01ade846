"""`hearth drain` and `hearth restart-device`, for operators."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from hearth.cli import connect_options
from hearth.cli.format import output
from hearth.cli.format.complaint import complain

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth.endpoint.admin import AdminClient

_POLL_S = 0.25


def add_to(commands: Any) -> None:
    """Adds the commands and their arguments."""
    drain: argparse.ArgumentParser = commands.add_parser(
        "drain",
        help="refuse new sessions (requires the right to administer)",
        description="Makes the daemon refuse new sessions and report that it is not ready; existing sessions continue "
        "until they are closed. Only a restart of the daemon ends this state. Requires the right to "
        "administer.",
    )
    drain.add_argument(
        "--wait",
        type=connect_options.seconds,
        metavar="SECONDS",
        help="wait until no session is left; exit status 1 if some are left",
    )
    connect_options.add_arguments(drain)
    drain.set_defaults(run=run_drain)

    restart: argparse.ArgumentParser = commands.add_parser(
        "restart-device",
        help="replace a device's processes (requires the right to administer)",
        description="Replaces a device's processes and removes its fence. All sessions lose their arrays on the "
        "device. Requires the right to administer.",
    )
    restart.add_argument("device", type=connect_options.ordinal, metavar="N", help="number of the device")
    restart.add_argument(
        "--wait",
        type=connect_options.seconds,
        metavar="SECONDS",
        help="wait until the device is serving again; exit status 1 if it is not",
    )
    connect_options.add_arguments(restart)
    restart.set_defaults(run=run_restart)


def run_drain(arguments: argparse.Namespace) -> int:
    """Drains the daemon; returns 1 if sessions are left after the given wait. Raises `HearthError`."""
    with connect_options.open_admin(arguments) as admin:
        remaining = admin.drain()
        empty = remaining == 0
        if arguments.wait is not None:
            empty = _wait_for(admin, lambda: not admin.sessions(), arguments.wait)
            remaining = 0 if empty else len(admin.sessions())
        target = connect_options.target_text(admin.target)
    continuing = "session continues" if remaining == 1 else "sessions continue"
    text = f"draining: no new sessions; {remaining or 'no'} {continuing}"
    output.emit({"target": target, "draining": True, "sessions": remaining}, arguments.json, text)
    if arguments.wait is None or empty:
        return 0
    sys.stdout.flush()
    subject = "session is" if remaining == 1 else "sessions are"
    complain(
        f"{remaining} {subject} left after {arguments.wait:g} s. Fix: wait longer, or use `hearth sessions end ID`."
    )
    return 1


def run_restart(arguments: argparse.Namespace) -> int:
    """Restarts a device; returns 1 if the device does not serve after the given wait. Raises `HearthError`."""
    ordinal: int = arguments.device
    with connect_options.open_admin(arguments) as admin:

        def device_state() -> tuple[str, int]:
            return next(((d.state, d.generation) for d in admin.describe().devices if d.ordinal == ordinal), ("", 0))

        before = device_state()
        admin.restart_device(ordinal)

        def serves() -> bool:
            state, generation = device_state()
            return state == "serving" and generation > before[1]

        done = arguments.wait is None or _wait_for(admin, serves, arguments.wait)
        state, generation = device_state()
        target = connect_options.target_text(admin.target)
    document = {"target": target, "device": ordinal, "state": state, "generation": generation}
    text = f"device {ordinal} is {'serving' if state == 'serving' and generation > before[1] else 'being restarted'}"
    output.emit(document, arguments.json, text)
    if done:
        return 0
    sys.stdout.flush()
    complain(f"device {ordinal} is not serving after {arguments.wait:g} s. Fix: check it with `hearth status`.")
    return 1


def _wait_for(admin: AdminClient, condition: Callable[[], bool], seconds: float) -> bool:
    """Polls `condition`, which calls `admin`, for up to `seconds`; returns True as soon as it holds, otherwise False.

    Calls of `admin` that follow end soon after the timeout.
    """
    deadline = admin.deadline = time.monotonic() + seconds
    while not condition():
        if (remaining := deadline - time.monotonic()) <= 0:
            return False
        time.sleep(min(_POLL_S, remaining))
    return True
