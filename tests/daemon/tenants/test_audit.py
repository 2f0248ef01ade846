"""The audit log of a real daemon: actions with their callers, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hearth
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import node_pb2
from tests.support.daemon.harness import BACKEND, DaemonProcess, StartDaemon, hearthd, toml, wait_until
from tests.support.daemon.raw import Raw, refused
from tests.support.daemon.tenants import new_token, tenant, tenants, token_hash


def events(path: Path) -> list[dict[str, Any]]:
    """Returns the log's current entries; an incomplete last line is ignored."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def expect(path: Path, **wanted: Any) -> dict[str, Any]:
    """Waits for the event with all of these fields, and returns it; another thread writes the log."""

    def found() -> list[dict[str, Any]]:
        return [each for each in events(path) if wanted.items() <= each.items()]

    hits: list[dict[str, Any]] = wait_until(found, f"an event with {wanted} in {path}")
    assert len(hits) == 1, hits
    return hits[0]


@pytest.fixture
def audited(start_daemon: StartDaemon, tmp_path: Path) -> tuple[DaemonProcess, Path, dict[str, str]]:
    path = tmp_path / "audit.log"
    named = new_token()
    config, tokens = tenants(
        tenant("alice", tokens=[{"hash": token_hash(named), "name": "notebook"}]),
        tenant("guest", rights=["read"], quotas={"sessions": 1}),
        tenant("operator", rights=["admin"]),
        audit={"path": str(path)}, devices={"isolation": "shared"},
    )  # fmt: skip
    tokens["alice"] = named
    return start_daemon(**config), path, tokens


def test_actions_are_logged_with_caller(audited: tuple[DaemonProcess, Path, dict[str, str]]) -> None:
    daemon, path, tokens = audited
    assert expect(path, event="start")["seq"] == 1
    with pytest.raises(hearth.AuthenticationError):
        daemon.connect(token="hearth_wrong")
    failed = expect(path, event="authentication_failed")
    assert failed["method"] == "OpenSession" and "hearth_wrong" not in str(failed) and failed["peer"]

    with daemon.connect(token=tokens["alice"], name="my notebook") as alice:
        opened = expect(path, event="session_open", session=alice.session_id)
        assert (opened["tenant"], opened["credential"], opened["client"]) == ("alice", "token notebook", "my notebook")
        with pytest.raises(hearth.AuthenticationError):
            alice.drain()
        assert expect(path, event="refused", operation="Drain")["tenant"] == "alice"
        with pytest.raises(hearth.AuthenticationError):
            daemon.connect(token=tokens["guest"], isolation="dedicated")
        assert expect(path, event="refused", operation="OpenSession", tenant="guest")["right"] == "dedicated"

        with daemon.connect(token=tokens["operator"]) as operator:
            operator.end_session(alice.session_id)
            ended = expect(path, event="session_ended", session=alice.session_id)
            assert (ended["by"], ended["tenant"]) == ("operator", "alice")
            closed = expect(path, event="session_close", session=alice.session_id)
            assert "operator" in closed["why"]
            operator.restart_device(0)
            assert expect(path, event="restart_device")["tenant"] == "operator"
            lost = expect(path, event="device_lost")
            assert (lost["device"], lost["generation"]) == (0, 1) and lost["why"]
            operator.drain()
            assert expect(path, event="drain")["tenant"] == "operator"
    assert daemon.stop() == 0
    assert events(path)[-1]["event"] == "stop"
    assert not any(token in path.read_text() for token in tokens.values())
    done = hearthd("audit", "verify", str(path))
    assert done.returncode == 0 and f"{len(events(path))} lines" in done.stdout and not done.stderr
    path.write_text(path.read_text().replace("notebook", "intruder"))
    done = hearthd("audit", "verify", str(path))
    assert done.returncode == 1 and "does not follow" in done.stderr
    assert hearthd("audit", "verify", str(path) + ".missing").returncode == 2


def test_refused_commands_of_a_batch_are_logged_once(audited: tuple[DaemonProcess, Path, dict[str, str]]) -> None:
    """Commands in batches are refused by the device process, and each kind of refusal is logged once."""
    daemon, path, tokens = audited
    with Raw(daemon.unix, tokens["guest"]) as guest, guest.execute() as stream:
        for _ in range(3):
            for command in (
                c.Command(allocate=c.Allocate(buffer=1, size=4)),
                c.Command(fill=c.Fill(buffer=1, size=4, pattern=b"1")),
            ):
                assert stream.ask(command).HasField("error")
        refused(guest.call, "LoadModule", c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=b"x"))
        for operation, right in (("allocate", "allocate"), ("fill", "allocate"), ("LoadModule", "launch")):
            noted = expect(path, event="refused", operation=operation)
            assert (noted["right"], noted["session"]) == (right, guest.opened.session_id)
        # A quota that is exceeded is also logged as a refusal.
        refusal = refused(guest.node.OpenSession, node_pb2.OpenSessionRequest(), metadata=guest.metadata)
        assert refusal.reason == Reason.QUOTA_EXCEEDED and refusal.retry_after_s
        assert expect(path, event="refused", quota="sessions")["tenant"] == "guest"


def test_a_log_that_fills_the_disk_stops_no_session(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(**tenants("alice", audit={"path": "/dev/full"})[0])
    with pytest.raises(hearth.AuthenticationError):
        daemon.connect()

    def lost() -> float:
        page = daemon.get("/metrics", daemon.observer).body.splitlines()
        return float(next(line for line in page if line.startswith("hearth_audit_lost_events_total ")).split()[1])

    wait_until(lambda: lost() >= 2, "both events among those that were lost")
    assert "audit_lost" in daemon.log() and "No space left" in daemon.log()


def test_a_log_that_cannot_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "hearth.toml"
    path.write_text(toml({"audit": {"path": str(tmp_path / "missing" / "audit.log")}}))
    arguments = ["--backend", BACKEND, "--grpc", "", "--http", "", "--lanes", "", "--unix", str(tmp_path / "h.sock")]
    done = hearthd("serve", "--config", str(path), *arguments, "--log-level", "error")
    assert done.returncode == 2 and "audit.path" in done.stderr and "Traceback" not in done.stderr


def test_audit_verify_reports_and_exit_status(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """A daemon's log is signed and anchored; `audit verify` reports its findings, and sets the exit status
    accordingly."""
    (tmp_path / "logs").mkdir()
    path, key, anchor = tmp_path / "logs" / "audit.log", tmp_path / "audit.key", tmp_path / "audit.anchor"
    daemon = start_daemon(**tenants("alice", audit={"path": str(path), "key": str(key), "anchor": str(anchor)})[0])
    assert daemon.stop() == 0
    options = ("--key", str(key), "--anchor", str(anchor))
    last = events(path)[-1]["seq"]

    def verify(*arguments: str) -> tuple[int, str]:
        done = hearthd("audit", "verify", str(path), *arguments)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    code, told = verify(*options, "--require", "anchored")
    assert code == 0 and f"anchored up to entry {last} of {last}" in told
    code, told = verify("--config", str(daemon.config_path), "--json")
    assert code == 0 and json.loads(told)["guarantee"] == "anchored" and json.loads(told)["signed"] == last
    code, told = verify("--key", str(key), "--require", "anchored")
    assert code == 3 and "guarantee: keyed" in told and "weaker than" in told
    code, told = verify()
    assert code == 0 and "guarantee: chain only" in told and "signed by unknown keys" in told
    assert verify("--require", "much")[0] == verify("--key", "/nowhere")[0] == verify("--anchor", "/nowhere")[0] == 2
    assert hearthd("audit", "rotate-key", str(key)).returncode == 0
    assert verify(*options)[0] == 0, "signatures of the older key stay valid"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    code, told = verify(*options)
    assert code == 1 and "its end is missing" in told and "verification failed" in told
