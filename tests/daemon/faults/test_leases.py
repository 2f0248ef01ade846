"""Resources of a session are released: immediately when it is closed, within its lease after its client has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2, node_pb2
from tests.support.daemon.harness import DaemonProcess, environment, marked, wait_until
from tests.support.daemon.held import GAUGES, state_of
from tests.support.daemon.kernels import common, gated, saxpy_works
from tests.support.daemon.lent import LentDaemon
from tests.support.daemon.raw import Raw, refused
from tests.support.daemon.renewals import lease_renewed
from tests.support.folders import ROOT

LEASE_S = 2.0
"""The lease. Tests that renew it start again if the machine was too busy for a renewal in time."""
LATE_S = 20.0
"""Seconds: far more than any step here takes, and less than the default lease. After that time, an event counts as
missing."""


@pytest.fixture(scope="module")
def lent(cache: Path) -> Iterator[LentDaemon]:
    lender = LentDaemon(cache, {"sessions": {"lease": f"{LEASE_S}s"}})
    yield lender
    lender.close()


@pytest.fixture
def daemon(lent: LentDaemon) -> DaemonProcess:
    return lent.lend()


def held(daemon: DaemonProcess) -> dict[str, float]:
    """Returns the resources that sessions hold, summed over all devices."""
    gauges = state_of(daemon).gauges
    return {name: sum(each.get(name, 0) for each in gauges) for name in GAUGES}


def everything(node: hearth.Node) -> list[object]:
    """Creates an object of every kind that a session can own on each device; the caller must keep the result alive."""
    kept: list[object] = [node]
    for gpu in node.devices:
        x = gpu.full(1 << 20, 7, np.uint8)
        add_one = common(gpu, "add_one")
        y = gpu.zeros(64, np.int32)
        with gpu.graph() as graph:
            add_one((1,), (64,), (y, np.int32(64)))
        with gpu.prepared() as prepared:
            add_one((1,), (64,), (y, np.int32(64)))
        graph.launch(3)
        prepared.launch(3)
        with gpu.persistent_memory():
            kept.append(gpu.zeros(100_000, np.uint8))
        kept += [x, add_one, y, graph, prepared, gpu.stream(), gpu.default_stream.record(), gpu.durable(x)]
        gpu.publish(f"weights {gpu.ordinal}", gpu.ones(1000, np.float32))
        kept.append(gpu.attach(f"weights {gpu.ordinal}"))
        profile, trace = gpu.profile(), gpu.trace()
        profile.__enter__()
        trace.__enter__()
        kept += [profile, trace]
        gpu.synchronize()
    return kept


def test_close_releases_all_resources_before_it_returns(daemon: DaemonProcess) -> None:
    node = daemon.connect()
    kept = everything(node)
    before = held(daemon)
    for name in ("buffers", "modules", "graphs", "prepared_lists", "memory_in_use_bytes", "durable_bytes",
                 "profiles_open", "traces_running", "buffers_published"):  # fmt: skip
        assert before[name] > 0, name
    node.close()
    assert not any(held(daemon).values())
    del kept
    with daemon.connect() as other:
        with pytest.raises(hearth.InvalidHandleError):
            other.device(0).attach("weights 0")
        saxpy_works(other.device(0))


def test_close_with_kernels_running(daemon: DaemonProcess) -> None:
    """The close returns when the memory in use by the kernels has been released, which is when they have ended."""
    node = daemon.connect()
    gpu = node.device(0)
    spin, add_one = common(gpu, "spin"), common(gpu, "add_one")
    x = gpu.zeros(1 << 18, np.int32)
    for _ in range(3):
        spin((1,), (1,), (np.int64(100_000_000),))
        add_one((1024,), (256,), (x, np.int32(1 << 18)))
    gpu.flush()
    node.close()
    assert not any(held(daemon).values())
    with daemon.connect() as other:
        saxpy_works(other.device(0))


def test_processes_of_a_dedicated_session_end_with_it(daemon: DaemonProcess) -> None:
    before = set(marked(daemon.mark))
    node = daemon.connect(isolation="dedicated")
    saxpy_works(node.device(0))
    own = [each["pid"] for each in daemon.status()["devices"][0]["processes"] if each["session"] == node.session_id]
    assert len(own) == 1 and own[0] not in before
    node.close()
    wait_until(lambda: own[0] not in marked(daemon.mark), "the end of its process", LATE_S)


# ---- clients that have ended ----

DYING = """
import os, sys, hearth, numpy as np
sys.path.insert(0, sys.argv[2])
from tests.daemon.faults.test_leases import everything
node = hearth.connect(sys.argv[1], **({"isolation": "dedicated"} if sys.argv[3] == "dedicated" else {}))
kept = everything(node)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def patient(cache: Path) -> Iterator[LentDaemon]:
    """A daemon whose lease exceeds the duration of a client's imports and compiles on a busy machine."""
    lender = LentDaemon(cache, {"sessions": {"lease": f"{LATE_S / 2}s"}})
    yield lender
    lender.close()


@pytest.mark.parametrize("isolation", ["shared", "dedicated"])
def test_a_client_that_is_killed(patient: LentDaemon, isolation: str) -> None:
    daemon = patient.lend()
    processes = len(marked(daemon.mark))
    root = str(ROOT)
    client = subprocess.Popen(
        [sys.executable, "-c", DYING, daemon.unix, root, isolation],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(PYTHONPATH=os.pathsep.join(sys.path)),
    )  # fmt: skip
    assert client.stdout is not None and client.stdin is not None
    assert client.stdout.readline() == "ready\n"
    (session,) = daemon.status()["sessions"]
    assert session["connected"]
    client.send_signal(signal.SIGKILL)
    client.wait()
    wait_until(lambda: not daemon.status()["sessions"], "the end of its session", LATE_S)
    wait_until(lambda: not any(held(daemon).values()), "its memory", LATE_S)
    wait_until(lambda: len(marked(daemon.mark)) <= processes + 2, "the end of its processes", LATE_S)
    client.stdin.close()
    client.stdout.close()


def test_a_session_by_single_calls_alone_expires(daemon: DaemonProcess) -> None:
    """The session has no stream that could break: its lease starts at its last call."""
    raw, renewed = renewed_session(daemon)
    renew = node_pb2.RenewSessionRequest(session_token=raw.token)
    wait_until(lambda: not daemon.status()["sessions"], "the end of its lease", LATE_S)
    assert time.monotonic() - renewed >= LEASE_S
    assert not any(held(daemon).values())
    uses: list[Callable[[], object]] = [
        lambda: raw.node.RenewSession(renew, timeout=10),
        lambda: raw.call("Allocate", c.Allocate(buffer=77, size=1)),
        lambda: raw.node.CloseSession(node_pb2.CloseSessionRequest(session_token=raw.token), timeout=10),
        lambda: list(raw.device.Download(device_pb2.DownloadRequest(session_token=raw.token, transfer=1), timeout=10)),
    ]
    for use in uses:
        assert refused(use).reason == Reason.SESSION_EXPIRED
    raw.channel.close()


def renewed_session(daemon: DaemonProcess) -> tuple[Raw, float]:
    """Returns a session with a buffer that has been renewed for longer than its lease, and the time of its last
    renewal. If this process or the daemon was not scheduled in time to renew the lease, starts again with another
    session."""
    while True:
        raw = Raw(daemon.unix)
        renew = node_pb2.RenewSessionRequest(session_token=raw.token)
        began = renewed = time.monotonic()
        try:
            raw.buffer(bytes(5000))
            while time.monotonic() < began + 1.5 * LEASE_S:
                time.sleep(LEASE_S / 8)  # the session stays as long as it is renewed
                now = time.monotonic()
                assert raw.node.RenewSession(renew, timeout=LATE_S).lease_ns == LEASE_S * 1e9
                if time.monotonic() - renewed > LEASE_S / 2:
                    raise TimeoutError
                renewed = now
            memory = held(daemon)["memory_in_use_bytes"]
            if time.monotonic() - renewed > LEASE_S / 2:
                raise TimeoutError
            assert memory >= 5000
            return raw, renewed
        except (TimeoutError, grpc.RpcError):
            if time.monotonic() - renewed < LEASE_S / 2:
                raise
            raw.channel.close()


def test_running_call_keeps_its_session(daemon: DaemonProcess) -> None:
    """The call takes longer than the lease."""
    finish = threading.Event()
    with daemon.connect() as node, gated(node.device(0)) as gate:
        gate.hold()
        # opened after everything is compiled, because a compile may take longer than the lease
        raw, call = uploading_session(daemon, finish)
        time.sleep(1.2 * LEASE_S)  # longer than the lease
        assert listed(daemon, raw)
        finish.set()
        call.cancel()
    raw.channel.close()


def listed(daemon: DaemonProcess, raw: Raw) -> dict[str, Any] | None:
    """Returns the daemon's description of a session; None if it has ended."""
    return next((each for each in daemon.status()["sessions"] if each["id"] == raw.opened.session_id), None)


def uploading_session(daemon: DaemonProcess, finish: threading.Event) -> tuple[Raw, grpc.Future]:
    """Returns a session, and an upload that it makes until `finish`. Opens another session if the lease ended before
    the upload began."""
    for _ in range(4):
        raw = Raw(daemon.unix)
        call = raw.device.Upload.future(_until(finish, raw))
        while (session := listed(daemon, raw)) and not session["connected"]:
            time.sleep(0.01)
        if session:
            return raw, call
        raw.channel.close()
    raise AssertionError("the session of a running call ended")


def _until(finish: threading.Event, raw: Raw) -> Iterator[device_pb2.UploadRequest]:
    yield device_pb2.UploadRequest(session_token=raw.token, transfer=9, data=b"x")
    finish.wait(60)


def test_idle_client_keeps_its_session(patient: LentDaemon) -> None:
    """A client renews its lease automatically, whether it has used a device or not."""
    daemon = patient.lend()
    with daemon.connect() as idle, daemon.connect() as used:
        x = used.device(0).ones(4)
        used.device(0).synchronize()
        wait_until(lease_renewed(daemon, idle), "a renewal")
        assert {idle.session_id, used.session_id} <= {session["id"] for session in daemon.status()["sessions"]}
        saxpy_works(idle.device(0))
        assert (x.get() == 1).all()
