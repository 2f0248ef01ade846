"""SIGHUP: the settings that change while the daemon runs, those that do not, and no effect on other sessions."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hearth
from tests.support.client.short_connects import refusal_of_connect
from tests.support.daemon.harness import hearthd, needs_devices, wait_until
from tests.support.daemon.kernels import common, saxpy_works
from tests.support.daemon.reloading import Reloaded
from tests.support.daemon.tenants import new_token, tenant, token_hash

ALICE, CI, BOB, OPERATOR = (new_token() for _ in range(4))
MIB = 1 << 20


def everybody(**alice: Any) -> list[dict[str, Any]]:
    """Returns the tenants of the module's daemon, with the given changes to alice."""
    tokens = [{"hash": token_hash(ALICE), "name": "mine"}, {"hash": token_hash(CI), "name": "ci"}]
    return [
        tenant("alice", **{"tokens": tokens, **alice}),
        tenant("bob", tokens=[token_hash(BOB)]),
        tenant("operator", tokens=[token_hash(OPERATOR)], rights=["admin"]),
    ]


@pytest.fixture(scope="module")
def running(cache: Path) -> Iterator[Reloaded]:
    with tempfile.TemporaryDirectory(prefix="hearth-test-") as folder:
        reloaded = Reloaded(cache, 2, tenants=everybody(), audit={"path": f"{folder}/audit.log"})
        yield reloaded
        pid = reloaded.daemon.process.poll()
        reloaded.end()
        assert pid is None, "the daemon ended before its tests"


@pytest.fixture(autouse=True)
def as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "running" in request.fixturenames:
        running: Reloaded = request.getfixturevalue("running")
        running.change(tenants=everybody(), auth={}, launch={}, log={}, sessions={}, devices={}, listen={}, overload={})


def connect(running: Reloaded, token: str) -> hearth.Node:
    return running.daemon.connect(token=token)


def audited(running: Reloaded, event: str) -> list[dict[str, Any]]:
    """Waits for the audit log's entries of an event, and returns them."""

    def found() -> list[dict[str, Any]]:
        lines = Path(running.config["audit"]["path"]).read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if entry["event"] == event]

    return list(wait_until(found, event))


# ---- tenants ----


def test_a_revoked_token_stops_working(running: Reloaded) -> None:
    """Sessions that were opened with the token end with that reason; sessions of the tenant's other tokens continue."""
    with connect(running, ALICE) as mine, connect(running, CI) as ci, connect(running, BOB) as bob:
        arrays = [node.device(0).full(1000, 7, np.int32) for node in (mine, ci, bob)]
        for node in (mine, ci, bob):
            node.device(0).synchronize()
        entry = running.change(tenants=everybody(tokens=[{"hash": token_hash(ALICE), "name": "mine"}]))
        assert entry["changed"] == "tenants" and entry["tenants"] == "alice (tokens)" and entry["sessions_ended"] == 1
        with pytest.raises(hearth.SessionExpiredError, match=r"token ci.* is unknown") as caught:
            arrays[1].get()
        assert "operator" in str(caught.value.fix)
        assert (arrays[0].get() == 7).all() and (arrays[2].get() == 7).all()
    with pytest.raises(hearth.AuthenticationError, match="token is unknown"):
        connect(running, CI)
    (revoked,) = audited(running, "session_revoked")
    assert revoked["tenant"] == "alice" and revoked["credential"] == "token ci"
    wait_until(lambda: audited(running, "reload")[-1].get("tenants") == "alice (tokens)", "the reload in the audit log")


def test_tenants_are_added_and_removed(running: Reloaded) -> None:
    token = new_token()
    with pytest.raises(hearth.AuthenticationError):
        connect(running, token)
    entry = running.change(tenants=[*everybody(), tenant("guest", tokens=[token_hash(token)])])
    assert entry["tenants"] == "+guest"
    node = connect(running, token)
    assert node.tenant == "guest"
    saxpy_works(node.device(0))
    entry = running.change(tenants=everybody())
    assert entry["tenants"] == "-guest" and entry["sessions_ended"] == 1
    with pytest.raises(hearth.SessionExpiredError, match="configuration"):
        node.device(0).synchronize()
    node.close()

    def processes() -> set[str]:
        devices = running.daemon.status()["devices"]
        return {process["tenant"] for device in devices for process in device["processes"] if process["pid"]}

    wait_until(lambda: "guest" not in processes(), "the end of its process")


def test_token_moved_to_other_tenant(running: Reloaded) -> None:
    with connect(running, CI) as node:
        node.device(0).synchronize()
        tables = everybody(tokens=[token_hash(ALICE)])
        tables[1]["tokens"] = [token_hash(BOB), token_hash(CI)]
        assert running.change(tenants=tables)["sessions_ended"] == 1
        with pytest.raises(hearth.SessionExpiredError, match="'bob'"):
            node.device(0).synchronize()
    with connect(running, CI) as node:
        assert node.tenant == "bob"


def test_token_with_a_changed_expiry_date(running: Reloaded) -> None:
    """A date in the past makes the token invalid immediately; a date in the future leaves it valid."""
    dated = [{"hash": token_hash(ALICE), "name": "mine", "expires": "2999-01-01"}]
    with connect(running, ALICE) as node:
        node.device(0).synchronize()
        assert running.change(tenants=everybody(tokens=dated))["sessions_ended"] == 0
        node.device(0).synchronize()
        dated[0]["expires"] = "2020-01-01"
        assert running.change(tenants=everybody(tokens=dated))["sessions_ended"] == 1
        with pytest.raises(hearth.SessionExpiredError, match="expired"):
            node.device(0).synchronize()


def test_quota_below_current_use_frees_nothing(running: Reloaded) -> None:
    with connect(running, ALICE) as node:
        gpu = node.device(0)
        x = gpu.full(4 * MIB, 3, np.uint8)
        gpu.synchronize()
        entry = running.change(tenants=everybody(quotas={"device_bytes": "2MiB", "sessions": 1}))
        assert entry["tenants"] == "alice (quotas)" and entry["sessions_ended"] == 0
        with pytest.raises(hearth.QuotaExceededError):
            gpu.zeros(MIB, np.uint8).get()
        with pytest.raises(hearth.QuotaExceededError, match="sessions"):
            connect(running, ALICE)
        assert (x.get() == 3).all()
        running.change(tenants=everybody(quotas={"device_bytes": "16MiB"}))
        assert (gpu.full(4 * MIB, 5, np.uint8).get() == 5).all() and (x.get() == 3).all()
        connect(running, ALICE).close()


def test_rights_removed_and_restored(running: Reloaded) -> None:
    """The session is running, and has submitted the launches many times before."""
    rights = ["allocate", "read", "write", "launch"]
    with connect(running, ALICE) as node:
        gpu = node.device(0)
        add_one, x = common(gpu, "add_one"), gpu.zeros(1000, np.int32)

        def launch() -> None:
            for _ in range(50):
                add_one((4,), (256,), (x, np.int32(1000)))
            gpu.synchronize()

        for _ in range(5):
            launch()
        running.change(tenants=everybody(rights=rights[:3]))
        with pytest.raises(hearth.HearthError) as caught:
            launch()
        assert caught.value.reason == "PERMISSION_DENIED" and "launch" in str(caught.value)
        assert (x.get() == 250).all(), "none of them ran"
        running.change(tenants=everybody(rights=rights))
        launch()
        assert (x.get() == 300).all()


def test_device_removed_from_a_tenant(running: Reloaded) -> None:
    needs_devices(running.daemon, 2)
    with connect(running, ALICE) as node:
        arrays = [device.full(10, 1, np.int32) for device in node.devices]
        for device in node.devices:
            device.synchronize()
        running.change(tenants=everybody(devices=[0]))
        with pytest.raises(hearth.HearthError, match="Device 1") as caught:
            arrays[1].get()
        assert caught.value.reason == "DEVICE_NOT_FOUND"
        assert (arrays[0].get() == 1).all()
        with connect(running, ALICE) as second:
            assert len(second.devices) == 1
        running.change(tenants=everybody(devices=[0, 1]))
        for array in arrays[1:] * 2:
            with pytest.raises(hearth.BufferLostError):  # its memory was freed
                array.get()
        assert (node.device(1).full(10, 2, np.int32).get() == 2).all()


# ---- other settings ----


def test_settings_that_need_a_restart_are_kept_and_named(running: Reloaded) -> None:
    entry = running.change(
        listen={"unix": "/tmp/elsewhere.sock"}, devices={"max_streams": 7, "max_processes": 5}, drain_timeout="1s"
    )
    assert entry["changed"] == "devices.max_processes, drain_timeout"
    assert entry["needs_restart"] == "devices.max_streams" and entry["level"] == "warning"
    assert "listen.unix" not in entry["needs_restart"], "a flag names the socket, so the file does not"
    again = running.change(listen={}, devices={}, drain_timeout="0s")
    assert "needs_restart" not in again and again["changed"] == "devices.max_processes, drain_timeout"


def test_the_log_s_level_and_format(running: Reloaded) -> None:
    odd = {"max_streams": 7}  # requires a restart, which is logged as a warning
    running.change(log={"level": "warning"}, devices=odd)
    connect(running, ALICE).close()
    running.change(log={"level": "info"}, devices=odd)
    with connect(running, ALICE) as node:
        session = node.session_id
    assert [entry["session"] for entry in running.events("session_open")][-1] == session
    opened = len(running.events("session_open"))
    running.write(log={"format": "console"}, devices=odd)
    running.daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "needs_restart=devices.max_streams" in running.daemon.log(), "a line for people")
    running.change(log={}, devices={})
    assert len(running.events("session_open")) == opened


def test_settings_of_authentication(running: Reloaded) -> None:
    assert running.daemon.get("/metrics").status == running.daemon.get("/status").status == 401
    entry = running.change(auth={"failure_delay": "1ms", "max_failures": 1}, http={"metrics_on_loopback": True})
    assert entry["changed"] == "auth.max_failures, auth.failure_delay, http.metrics_on_loopback"
    assert running.daemon.get("/metrics").status == running.daemon.get("/readyz").status == 200
    assert running.daemon.get("/status").status == 401
    assert running.daemon.get("/status", token=OPERATOR).status == 200
    for _ in range(3):
        with pytest.raises(hearth.AuthenticationError) as caught:
            connect(running, new_token())
    assert caught.value.retry_after == pytest.approx(0.001)


def test_the_lease_and_the_limit_of_new_sessions(running: Reloaded) -> None:
    with connect(running, ALICE):
        running.change(sessions={"lease": "7s", "max": 2})
        with connect(running, BOB) as node:
            with pytest.raises(hearth.HearthError, match="the maximum is 2"):
                connect(running, OPERATOR)
            leases = [session["lease_left_seconds"] for session in running.daemon.status()["sessions"]]
            assert min(leases) <= 7 < max(leases), node


def test_the_time_limit_of_launches(running: Reloaded) -> None:
    with connect(running, BOB) as old:
        old.device(0).synchronize()
        running.change(launch={"timeout": "200ms"})
        with connect(running, ALICE) as node:
            gpu = node.device(0)
            module = gpu.RawModule(code='extern "C" __global__ void forever(volatile int* x) { while (!*x) {} }')
            module.get_function("forever")((1,), (1,), (gpu.zeros(1, np.int32),))
            with pytest.raises(hearth.DeviceLostError, match="limit"):
                gpu.synchronize()
        old.device(0).synchronize()


# ---- unusable configurations ----


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("not toml", "TOML"),
        ("[sessions]\nleese = '1s'\n", "sessions.lease"),
        ("[sessions]\nlease = 'soon'\n", "sessions.lease"),
        ("[[tenants]]\nname = 'x'\nusers = ['no-such-user-here']\n", "no-such-user-here"),
        ("[[tenants]]\nname = 'x'\ncertificates = ['a']\n", "client_ca"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_changes_nothing(running: Reloaded, text: str | None, told: str) -> None:
    path = running.daemon.config_path
    with connect(running, ALICE) as node:
        x = node.device(0).full(10, 2, np.int32)
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
        entry = running.hang_up()
        assert entry["event"] == "reload_refused" and told in entry["why"] and str(path) in entry["why"] + str(path)
        assert (x.get() == 2).all()
        saxpy_works(node.device(0))
        connect(running, CI).close()
    wait_until(lambda: audited(running, "reload_refused")[-1]["why"] == entry["why"], "the refusal in the audit log")


def test_a_moved_audit_log_continues_in_a_new_file(running: Reloaded) -> None:
    """Renames the log as logrotate does; the hash chain continues in the new file."""
    path = Path(running.config["audit"]["path"])
    connect(running, ALICE).close()
    wait_until(lambda: "session_close" in path.read_text(), "the last line")
    path.rename(f"{path}.1")
    running.hang_up()
    connect(running, BOB).close()
    wait_until(lambda: path.exists() and "session_close" in path.read_text(), "a new file")
    assert '"bob"' not in Path(f"{path}.1").read_text().splitlines()[-1]
    first = json.loads(path.read_text().splitlines()[0])
    last = Path(f"{path}.1").read_bytes().splitlines()[-1]
    assert first["event"] == "reload" and first["prev"] == hashlib.sha256(last).hexdigest()
    assert hearthd("audit", "verify", str(path)).returncode == 0


def test_empty_tenant_list_admits_no_client(running: Reloaded) -> None:
    """A truncated file must not open the daemon to every client."""
    entry = running.change(tenants=[], auth={"failure_delay": "1ms"})
    assert "none is left" in entry["needs_restart"] and entry["changed"] == "auth.failure_delay"
    with pytest.raises(hearth.AuthenticationError):
        running.daemon.connect()
    connect(running, ALICE).close()


# ---- signals ----


def test_signal_to_the_process_group_keeps_the_device_processes(running: Reloaded) -> None:
    with connect(running, ALICE) as node:
        gpu = node.device(0)
        x = gpu.full(10, 2, np.int32)
        gpu.synchronize()
        pids = [process["pid"] for device in running.daemon.status()["devices"] for process in device["processes"]]
        for pid in pids:
            os.kill(pid, signal.SIGHUP)
        running.hang_up()
        assert (x.get() == 2).all()
        saxpy_works(gpu)


def test_reloads_while_many_clients_work(running: Reloaded) -> None:
    """No client is affected: 32 threads with separate sessions, while tenants are added and removed."""
    over, failed, rounds = threading.Event(), [], [0] * 32

    def work(number: int) -> None:
        try:
            with connect(running, (ALICE, CI, BOB)[number % 3]) as node:
                gpu = node.device(number % len(node.devices))
                add_one, x = common(gpu, "add_one"), gpu.zeros(1000, np.int32)
                while not over.is_set() or not rounds[number]:
                    for _ in range(20):
                        add_one((4,), (256,), (x, np.int32(1000)))
                    rounds[number] += 1
                    assert (x.get() == 20 * rounds[number]).all()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: all(rounds) or failed, "a first round of every client", 60)
        for number in range(12):
            guest = [tenant(f"guest{number}", tokens=[token_hash(new_token())])] * (number % 2)
            running.write(tenants=[*everybody(weight=1 + number % 3, quotas={"sessions": 100 + number}), *guest])
            for _ in range(1 + number % 4):
                running.daemon.process.send_signal(signal.SIGHUP)
            before = sum(rounds)
            wait_until(lambda before=before: sum(rounds) > before + 8 or failed, "work", 60)
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    assert not failed
    running.hang_up()
    assert all(entry["sessions_ended"] == 0 for entry in running.events("reloaded")[-12:])


def test_thresholds_of_overload(running: Reloaded) -> None:
    """New sessions are refused while the threshold is below current use, and accepted after it is raised."""
    with connect(running, BOB) as node:
        done = running.change(overload={"descriptors": 0.0001, "descriptors_critical": 1.0})
        assert done["event"] == "reloaded" and "overload.descriptors" in done["changed"] and "needs_restart" not in done
        # a daemon that has recently started has not measured its load yet
        wait_until(lambda: not json.loads(running.daemon.get("/readyz").body)["ready"], "the overload")
        error = refusal_of_connect(lambda timeout: running.daemon.connect(token=BOB, timeout=timeout))
        assert isinstance(error, hearth.UnavailableError) and error.reason == "OVERLOADED"
        saxpy_works(node.device(0))
        running.change(overload={})
        connect(running, BOB).close()
        assert json.loads(running.daemon.get("/readyz").body)["ready"]
