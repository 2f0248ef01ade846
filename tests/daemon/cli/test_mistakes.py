"""The ten most likely mistakes at the command line: each is reported in one line that says how to correct it."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hearth.cli import main
from hearth.endpoint import open_session
from tests.support.daemon.authority import Authority
from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.tenants import new_token, tenant, tenants, token_hash
from tests.support.privileges import obeying

VARIABLES = ("TARGET", "TOKEN", "TOKEN_FILE", "CA", "CERTIFICATE", "KEY")
BENCH = ("bench", "--quick", "--max-size", "4KiB")
"""A command that opens a session."""


@dataclass(frozen=True)
class Places:
    """Values for the names in braces in the table below."""

    plain: str
    """A daemon without TLS and tenants."""
    http: str
    strict: str
    """A draining daemon with TLS and tenants."""
    strict_plain: str
    ca: str
    stranger: str
    token: str
    wrong: str
    expired: str
    locked: str
    """A socket that no user may access."""
    ordinals: str
    """The ordinals of the devices of `plain`, as messages list them."""


class Mistake(NamedTuple):
    name: str
    arguments: str
    status: int
    says: tuple[str, ...]
    variables: dict[str, str] = {}  # noqa: RUF012 - never changed


MISTAKES = (
    Mistake("no daemon there", "status 127.0.0.1:1", 1, ("127.0.0.1:1", "connection refused", "hearthd serve")),
    Mistake("no socket there", "top unix:/nowhere/hearth.sock", 1, ("the socket does not exist", "hearthd serve")),
    Mistake("no socket at all", "devices unix:/dev/null", 1, ("the file is not a socket",)),
    Mistake("the port of HTTP", "status {http}", 1, ("speaks HTTP/1, not gRPC", "7421 by default")),
    Mistake("the port of HTTP, with TLS", "status https://{http}", 1, ("speaks HTTP/1, not gRPC",)),
    Mistake("TLS is expected", "status {strict_plain}", 1, ("requires TLS", "https://")),
    Mistake("TLS is not expected", "status https://{plain}", 1, ("does not speak TLS", "without https://")),
    Mistake("a wrong CA", "status {strict} --ca {stranger}", 1, ("is not trusted", "HEARTH_CA")),
    Mistake("no CA", "status {strict}", 1, ("is not trusted", "HEARTH_CA")),
    Mistake("a CA without TLS", "status {plain} --ca {ca}", 2, ("only with TLS", "https://")),
    Mistake(
        "no token", "status {strict} --ca {ca}", 1, ("has no credentials", "HEARTH_TOKEN", "credentials sent: none")
    ),
    Mistake(
        "a wrong token", "sessions {strict} --ca {ca}", 1, ("token is unknown", "a token from HEARTH_TOKEN"),
        {"HEARTH_TOKEN": "{wrong}"},
    ),
    Mistake(
        "an expired token", "devices {strict} --ca {ca}", 1, ("expired", "a token from HEARTH_TOKEN"),
        {"HEARTH_TOKEN": "{expired}"},
    ),
    Mistake("no token file", "status {plain} --token-file /nowhere", 2, ("'/nowhere' cannot be read",)),
    Mistake("no right to administer", "drain {strict} --ca {ca} --token {token}", 1, ("admin",)),
    Mistake("a malformed HEARTH_TARGET", "status", 2, ("from HEARTH_TARGET", "host:7421"), {"HEARTH_TARGET": "a:b/c"}),
    Mistake("a malformed TARGET", "top unix:", 2, ("from the command line", '"unix:/run')),
    Mistake(
        "a device that is not there", "devices 77 {plain}", 1, ("no device 77; it has {ordinals}.", "hearth devices")
    ),
    Mistake("no number of a device", "devices -- -1 {plain}", 2, ("not a device number",)),
    Mistake("another device to restart", "restart-device 77 {plain}", 1, ("Device 77", "devices: {ordinals}.")),
    Mistake("a session that is not there", "sessions end 0123abcd {plain}", 1, ("no session '0123abcd'",)),
    Mistake("no session to end", "sessions end", 2, ("hearth sessions end ID",)),
    Mistake(
        "a daemon that drains", " ".join(BENCH) + " {strict} --ca {ca} --token {token}", 1,
        ("is draining and takes no new sessions", "another node"),
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def strict(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DaemonProcess, dict[str, str]]]:
    """A draining daemon with TLS and tenants, and the values that the table names."""
    folder = tmp_path_factory.mktemp("mistakes")
    ours, theirs = Authority(folder / "ours"), Authority(folder / "theirs")
    certificate, key = ours.issue("localhost")
    expired = new_token()
    old = tenant("old", tokens=[{"hash": token_hash(expired), "expires": "2020-01-31"}])
    config, tokens = tenants(
        tenant("boss", rights="all"), "alice", old, tls={"certificate": str(certificate), "key": str(key)}
    )
    daemon = DaemonProcess(cache, config, 1)
    try:
        target = f"https://localhost:{daemon.grpc.rpartition(':')[2]}"
        assert main.main(["drain", target, "--ca", str(ours.pem), "--token", tokens["boss"], "--json"]) == 0
        yield daemon, {
            "strict": target, "strict_plain": daemon.grpc, "ca": str(ours.pem), "stranger": str(theirs.pem),
            "token": tokens["alice"], "wrong": new_token(), "expired": expired,
        }  # fmt: skip
    finally:
        daemon.stop()
        left = daemon.left_behind()
        daemon.remove()
    assert not left


@pytest.fixture
def places(daemon: DaemonProcess, strict: tuple[DaemonProcess, dict[str, str]], tmp_path: Path) -> Places:
    ordinals = ", ".join(map(str, daemon.ordinals()))
    locked = str(tmp_path / "locked.sock")
    return Places(plain=daemon.grpc, http=daemon.http, locked=locked, ordinals=ordinals, **strict[1])


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the variables that configure a client from the environment."""
    for name in VARIABLES:
        monkeypatch.delenv(f"HEARTH_{name}", raising=False)


def told(status: int, expected: int, written: Any, *says: str) -> str:
    """Checks that the command wrote exactly one line of error; returns it."""
    assert (status, written.out) == (expected, ""), written
    (line,) = written.err.splitlines()
    assert line.startswith("hearth") and all(each in line for each in says), line
    assert "Traceback" not in line and "hearth_" not in line.replace("hearth_proto", ""), "no token is shown"
    return str(line)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name.replace(" ", "_"))
def test_a_mistake_is_reported_with_its_exit_status(
    mistake: Mistake, places: Places, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for name, value in mistake.variables.items():
        monkeypatch.setenv(name, value.format(**vars(places)))
    status = main.main(mistake.arguments.format(**vars(places)).split())
    says = [each.format(**vars(places)) for each in mistake.says]
    told(status, mistake.status, capsys.readouterr(), *says)


def test_status_of_a_draining_daemon(places: Places, capsys: Any) -> None:
    """`hearth status` opens no session, so it is answered; its exit status shows that the daemon is not ready."""
    status = main.main(["status", places.strict, "--ca", places.ca, "--token", places.token])
    written = capsys.readouterr()
    assert (status, written.err) == (1, "") and ": draining\n" in written.out


def test_another_version(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(open_session, "PROTOCOL_MIN", 98)
    monkeypatch.setattr(open_session, "PROTOCOL_MAX", 99)
    status = main.main([*BENCH, daemon.unix])
    told(status, 1, capsys.readouterr(), "The client speaks protocol versions 98 to 99", "Upgrade the daemon")


def test_socket_without_permission(places: Places) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(places.locked)
        listener.listen()
        Path(places.locked).chmod(0)
        done = subprocess.run(
            obeying(sys.executable, "-m", "hearth.cli.main", "status", f"unix:{places.locked}", reads=True),
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and "may not use the socket" in line and "permission denied" in line, line
    assert "users in the daemon's [[tenants]]" in line
