"""`hearth doctor`: finds problems between this program and a device's first result, and suggests remedies."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from hearth.cli import connect_options
from hearth.cli.doctor.check import Check, Findings, failed_check, run_bounded
from hearth.cli.format import output
from hearth.errors import HearthError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hearth.blocking.node import Node
    from hearth.endpoint.credentials import Credentials
    from hearth.endpoint.target import Target

_NETWORK = ("name", "port", "protocol")
_SESSION = ("session", "daemon", "ready", "identity", "clock", "faults", "descriptors", "devices", "compiler", "lanes")
_CLOSE_S = 3.0
_COMPILING = 3
"""Multiple of --timeout that a compile may take: it may be slow on a busy host without any problem."""
_WIDTH = 15


def add_to(commands: Any) -> None:
    """Adds the command and its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="find problems and suggest remedies",
        description="Checks everything that a first result requires: versions, environment, network, certificate, "
        "daemon, devices, compiler. The exit status is 1 if a check failed.",
    )
    parser.add_argument(
        "--device",
        type=connect_options.ordinal,
        metavar="N",
        help="check only this device (default: all devices that are serving)",
    )
    connect_options.add_arguments(parser, json_help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs and prints the checks; returns 1 if one failed.

    Never raises for a problem of the daemon or of the path to it.
    """
    findings = Findings() if arguments.json else Findings(_print)
    target = _examine(arguments, findings)
    if arguments.json:
        output.print_json(_document(findings, target))
    else:
        print(f"\n{findings.counts()}", flush=True)
    return 0 if findings.healthy else 1


def _examine(arguments: argparse.Namespace, findings: Findings) -> Target | None:
    from hearth.cli.doctor import client
    from hearth.endpoint import target as targets

    seconds = arguments.timeout
    findings.run("client", seconds, client.versions)
    target: Target | None = None
    try:
        target = targets.resolve(arguments.target)
    except HearthError as error:
        findings.add(failed_check("target", error))
    findings.run("environment", seconds, lambda: client.environment(loopback=target is None or target.loopback))
    findings.add(*client.token_file(arguments))
    if target is None:
        findings.skip((*_NETWORK, *_SESSION), "no target")
        return None
    findings.add(Check("target", "ok", f"{connect_options.target_text(target)}, from {_origin(target)}"))
    credentials = _find_credentials(arguments, findings, target)
    if not _check_path(arguments, findings, target, credentials):
        findings.skip(_SESSION, "the daemon cannot be reached")
        return target
    if credentials is None:
        findings.skip(_SESSION, "the credentials cannot be used")
        return target
    _check_session(arguments, findings, target, credentials)
    return target


def _find_credentials(arguments: argparse.Namespace, findings: Findings, target: Target) -> Credentials | None:
    try:
        result = connect_options.find_credentials(arguments, target)
    except HearthError as error:
        findings.add(failed_check("credentials", error))
        return None
    findings.add(Check("credentials", "ok", f"credentials sent: {result.shown}"))
    return result


def _check_path(
    arguments: argparse.Namespace, findings: Findings, target: Target, credentials: Credentials | None
) -> bool:
    """Checks the path to the daemon. Each check requires that the previous one passed.

    Returns True if none failed.
    """
    from hearth.cli.doctor import network

    seconds = arguments.timeout
    if target.address.startswith("unix:"):
        path = target.address.removeprefix("unix:")
        return findings.run("socket", seconds, lambda: network.unix_socket(path))
    inner = max(0.1, 0.4 * seconds)  # leaves time for two attempts
    checks = (
        ("name", lambda: network.resolved(target)),
        ("port", lambda: network.reachable(target, inner)),
        ("protocol", lambda: network.protocol(target, inner)),
    )
    for number, (name, check) in enumerate(checks):
        if not findings.run(name, seconds, check):
            findings.skip(_NETWORK[number + 1 :], f"the check {name!r} did not pass")
            return False
    if not target.tls:
        return True
    if credentials is None:
        findings.skip(("certificate",), "the credentials cannot be used")
        return True
    files = (
        arguments.certificate or os.environ.get("HEARTH_CERTIFICATE"),
        arguments.key or os.environ.get("HEARTH_KEY"),
    )
    client_files = (files[0], files[1]) if files[0] and files[1] else None
    return findings.run("certificate", seconds, lambda: network.certificate(target, credentials, client_files, inner))


def _check_session(arguments: argparse.Namespace, findings: Findings, target: Target, credentials: Credentials) -> None:
    """Makes the checks that need a session, and closes the session."""
    nodes: list[Node] = []
    timed_out = threading.Event()
    before = time.time()

    def open_session() -> Check:
        started = time.perf_counter()
        node = connect_options.connect(arguments)
        nodes.append(node)
        if timed_out.is_set():
            node.close()
        return Check("session", "ok", f"opened in {1e3 * (time.perf_counter() - started):.0f} ms")

    if not findings.run("session", arguments.timeout + 1, open_session):
        timed_out.set()
        findings.skip(_SESSION[1:], "no session could be opened")
        return
    (node,) = nodes
    try:
        _check_daemon(arguments, findings, target, node, credentials, before, time.time())
    finally:
        with contextlib.suppress(KeyboardInterrupt):
            run_bounded("close", _CLOSE_S, lambda: node.close() or [])


def _check_daemon(
    arguments: argparse.Namespace,
    findings: Findings,
    target: Target,
    node: Node,
    credentials: Credentials,
    before: float,
    after: float,
) -> None:
    from hearth.cli.doctor import daemon

    seconds = arguments.timeout
    if not findings.run("daemon", seconds, lambda: daemon.versions(node)):
        findings.skip(_SESSION[3:], "the check 'daemon' did not pass")
        return
    info = node.describe()
    findings.run("identity", seconds, lambda: daemon.identity(node, credentials.shown, target))
    findings.run("clock", seconds, lambda: daemon.clock(node, before, after))
    findings.run("faults", seconds, lambda: daemon.faults(node.status(), time.time()))
    findings.run("descriptors", seconds, lambda: daemon.descriptors(node.status()))
    findings.run("devices", seconds, lambda: daemon.devices(info))
    ordinals = [device.ordinal for device in node.devices]
    chosen = daemon.select_devices(info, ordinals, arguments.device)
    if arguments.device is not None and not chosen:
        detail = f"the node has no device {arguments.device}; it has {ordinals or 'none'}"
        findings.add(Check("compiler", "failed", detail, "omit --device, or pass one of these"))
        return
    for ordinal in chosen:
        work = partial(daemon.work, node.device(ordinal))
        findings.run(f"compiler {ordinal}", _COMPILING * seconds, work)
    if chosen:
        findings.run("lanes", seconds, lambda: daemon.lanes(node.device(chosen[0])))
    else:
        findings.skip(("compiler", "lanes"), "no device is serving")
    findings.run("local driver", seconds, lambda: daemon.local_driver(info, target.address.startswith("unix:")))


def _print(checks: Sequence[Check]) -> None:
    """Prints a line for each check, and another one with the remedy.

    Checks that are skipped together share one line.
    """
    if len(checks) > 1 and len({(check.status, check.detail) for check in checks}) == 1:
        names = ", ".join(check.name for check in checks)
        print(f"{checks[0].status:<8} {f'{len(checks)} checks':<{_WIDTH}} {names}: {checks[0].detail}")
        sys.stdout.flush()
        return
    for check in checks:
        print(f"{check.status:<8} {check.name:<{_WIDTH}} {check.detail}")
        if check.status in ("warning", "failed") and check.fix:
            print(f"{'':<8} {'':<{_WIDTH}} -> {check.fix}")
    sys.stdout.flush()


def _document(findings: Findings, target: Target | None) -> dict[str, Any]:
    return {
        "target": connect_options.target_text(target) if target is not None else None,
        "healthy": findings.healthy,
        "checks": [vars(check) for check in findings.checks],
    }


def _origin(target: Target) -> str:
    return "the command line" if target.origin.startswith("the argument") else target.origin
