"""`hearth status`, `devices`, `sessions`, `drain`, `restart-device` against a real daemon: text, JSON documents, exit
status."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import hearth
from hearth.cli import main
from hearth.endpoint.admin import AdminClient
from tests.support.daemon.draining import terminate
from tests.support.daemon.harness import DaemonProcess, StartDaemon, wait_until

HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\n\u202eevil \u65e5\u672c"


class Done(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        assert found["schema"] == 1
        return found


class Command:
    """Runs `hearth ARGUMENTS` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Done:
        self._capsys.readouterr()
        status = main.main(arguments)
        out, err = self._capsys.readouterr()
        return Done(status, out, err)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    for name in ("TARGET", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"HEARTH_{name}", raising=False)
    return Command(capsys)


# ---- watching ----


@pytest.mark.parametrize("road", ["unix", "grpc"])
def test_status(daemon: DaemonProcess, run: Command, road: str) -> None:
    target = getattr(daemon, road)
    done = run("status", target)
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].endswith(": ready") and f"at {target}" in lines[1] and lines[2].startswith("sessions: ")
    assert [line.split()[0] for line in lines[4:6]] == ["DEVICE", "QUEUED"]
    ordinals = daemon.ordinals()
    rows = lines[6 : 6 + 2 * len(ordinals) : 2]  # two lines for each device
    assert [row.split()[0] for row in rows] == list(map(str, ordinals)) and all("serving" in row for row in rows)
    found = run("status", target, "--json").document
    page = daemon.status()
    assert found["target"] == target and found["ready"] and not found["draining"]
    assert set(page) <= set(found) and found["started_unix"] == page["started_unix"]
    assert [each["uuid"] for each in found["devices"]] == [each["uuid"] for each in page["devices"]]


def test_read_only_commands_open_no_session(daemon: DaemonProcess, run: Command) -> None:
    before = daemon.log().count('"session_open"')
    for arguments in (["status"], ["devices"], ["sessions"], ["published"], ["top", "--once", "--interval", "0.1"]):
        for target in (daemon.unix, daemon.grpc):
            assert run(*arguments, target).status == 0
    daemon.connect().close()
    wait_until(lambda: daemon.log().count('"session_open"') > before, "the log")
    assert daemon.log().count('"session_open"') == before + 1, "only the session that the test itself opened"


def test_published(start_daemon: StartDaemon, run: Command) -> None:
    daemon = start_daemon(cpu_count=2)
    assert run("published", daemon.unix).out == "no published arrays\n"
    with daemon.connect() as owner, daemon.connect() as user:
        owner.device(0).zeros((2, 3), "float32").publish("weights")
        last = daemon.ordinals()[-1]
        owner.device(last).zeros(4, "int8").publish("zero_point")
        attached = user.device(0).attach("weights")
        header, *rows = (line.split() for line in run("published", daemon.unix).out.splitlines())
        assert header == ["NAME", "TENANT", "SESSION", "DEVICE", "SHAPE", "DTYPE", "SIZE", "ATTACHED", "SINCE"]
        session = owner.session_id
        assert rows[0][:9] == ["weights", "default", session, "0", "2x3", "float32", "24", "bytes", "1"]
        assert rows[1][:9] == ["zero_point", "default", session, str(last), "4", "int8", "4", "bytes", "0"]
        assert rows[1][-1] == "ago"
        found = run("published", daemon.unix, "--json").document
        assert (
            found["target"] == daemon.unix and time.time() - 60 < found["published"][0].pop("since_unix") <= time.time()
        )
        assert found["published"][0] == {
            "name": "weights", "tenant": "default", "device": 0, "bytes": 24, "shape": [2, 3], "dtype": "float32",
            "session": session, "attached": 1, "grants": [],
        }  # fmt: skip
        del attached


def test_devices(daemon: DaemonProcess, gpu: hearth.Device, run: Command) -> None:
    done, ordinals = run("devices", daemon.unix), daemon.ordinals()
    last = ordinals[-1]
    assert done.status == 0 and [line.split()[0] for line in done.out.splitlines()] == ["DEVICE", *map(str, ordinals)]
    detail = run("devices", str(last), daemon.unix).out
    assert detail.startswith(f"device {last}: ") and "\n  warp_size " in detail and " 1024 x 1024 x 64\n" in detail
    found = run("devices", "--json", daemon.unix).document
    assert [each["ordinal"] for each in found["devices"]] == ordinals
    first = found["devices"][0]
    assert first["state"] == "serving" and first["properties"]["total_memory"] == gpu.properties.total_memory
    assert first["properties"]["features"] == sorted(gpu.properties.features)
    assert [each["ordinal"] for each in run("devices", "--json", str(last), daemon.unix).document["devices"]] == [last]


def test_sessions(lossy: DaemonProcess, run: Command) -> None:
    # lent without sessions, because sessions of programs that other tests have killed exist until their lease ends
    daemon = lossy
    assert run("sessions", daemon.unix).out == "no sessions\n"
    with daemon.connect(name=HOSTILE) as node:
        last = daemon.ordinals()[-1]
        node.device(last).zeros(8).get()
        done = run("sessions", daemon.unix)
        (row,) = (line for line in done.out.splitlines() if line.startswith(node.session_id))
        assert row.isprintable() and " connected " in row
        assert row.endswith(f"evil \u65e5\u672c ({socket.gethostname()}:{os.getpid()})")
        (found,) = run("sessions", daemon.grpc, "--json").document["sessions"]
        assert found["id"] == node.session_id and found["client"] == HOSTILE and found["devices"] == [last]
        assert found["process"] == f"{socket.gethostname()}:{os.getpid()}"
        assert found["tenant"] == "default" and found["connected"] and found["device_seconds"] >= 0
        for text in (run("status", daemon.unix).out, run("top", "--once", "--interval", "0.1", daemon.unix).out):
            assert "\x1b" not in text and "\x07" not in text


def test_the_end_of_a_session(daemon: DaemonProcess, run: Command) -> None:
    with daemon.connect() as node:
        node.device(0).synchronize()
        done = run("sessions", "end", node.session_id, daemon.unix)
        assert (done.status, done.out) == (0, f"session {node.session_id} has ended\n")
        with pytest.raises(hearth.SessionExpiredError):
            wait_until(node.device(0).synchronize)
        again = run("sessions", "end", node.session_id, daemon.unix, "--json")
        assert again.status == 1 and not again.out and "There is no session" in again.err
    with daemon.connect() as node:
        ended = run("sessions", "end", node.session_id, daemon.grpc, "--json").document
        assert ended["ended"] == node.session_id


# ---- waiting ----


def test_wait_for_absent_daemon_times_out(run: Command) -> None:
    done = run("status", "127.0.0.1:1", "--wait", "0.3")
    assert done.status == 1 and "connection refused" in done.err


def test_wait_returns_when_daemon_starts(
    daemon: DaemonProcess, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon's socket does not exist at the first attempt."""
    real, refused = AdminClient.status, []

    def status(asker: AdminClient) -> dict[str, Any]:
        try:
            return real(asker)
        except hearth.ConnectError as error:
            refused.append(error)
            (tmp_path / "late.sock").symlink_to(daemon.socket)
            raise

    monkeypatch.setattr(AdminClient, "status", status)
    done = run("status", f"unix:{tmp_path}/late.sock", "--wait", "60", "--json")
    assert done.status == 0 and done.document["ready"] and len(refused) == 1


# ---- operating ----


def test_operator_commands(start_daemon: StartDaemon, run: Command) -> None:
    own = start_daemon(cpu_count=1, drain_timeout="20s")
    before = own.status()["devices"][0]["generation"]
    done = run("restart-device", "0", own.unix, "--wait", "60", "--json")
    assert done.status == 0 and done.document["state"] == "serving" and done.document["generation"] > before
    at_once = run("restart-device", "0", own.unix)
    assert at_once.status == 0 and at_once.out.startswith("device 0 is ")
    assert run("status", own.unix, "--wait", "60").status == 0

    node = own.connect()
    assert run("drain", own.unix).out == "draining: no new sessions; 1 session continues\n"
    done = run("status", own.unix)
    assert done.status == 1 and ": draining\n" in done.out and not done.err
    waited = run("status", own.unix, "--wait", "0.3")
    assert waited.status == 1 and ": draining\n" in waited.out and "not ready after 0.3 s" in waited.err
    left = run("drain", own.unix, "--wait", "0.3", "--json")
    assert left.status == 1 and left.document["sessions"] == 1 and "1 session is left" in left.err
    node.close()
    assert run("drain", own.grpc, "--wait", "20").out == "draining: no new sessions; no sessions continue\n"
    terminate(own)
    assert own.process.wait(20) == 0


def test_operation_that_failed_is_not_carried_out_later(start_daemon: StartDaemon, run: Command) -> None:
    daemon = start_daemon()
    with daemon.connect() as node:
        os.kill(daemon.process.pid, signal.SIGSTOP)
        try:
            for arguments in (["drain"], ["restart-device", "0"], ["sessions", "end", node.session_id]):
                done = run(*arguments, daemon.unix, "--timeout", "0.2")
                assert done.status == 1 and "did not answer" in done.err, arguments
        finally:
            os.kill(daemon.process.pid, signal.SIGCONT)
        found = run("status", daemon.unix, "--json").document
        assert found["ready"] and not found["draining"] and found["devices"][0]["generation"] == 1
        assert [session.session_id for session in node.sessions()] == [node.session_id]
