"""Draining and stopping: the notifications, the work that is waited for and for how long, and a clean end."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2, node_pb2
from tests.support.daemon.draining import compiling, endless, terminate
from tests.support.daemon.harness import BACKEND, MARK, DaemonProcess, StartDaemon, environment, marked, wait_until
from tests.support.daemon.kernels import gated, saxpy_works
from tests.support.daemon.raw import Raw, refusal_of, refused
from tests.support.daemon.slow_compile import SLOW
from tests.support.timing import LATE

SOON = 2 * LATE
"""Seconds within which a daemon without pending work has ended, on a busy machine."""
SAME_SIGNAL_S = 0.3
"""Seconds within which a second signal is treated as the same signal."""


def ended(daemon: DaemonProcess, since: float) -> float:
    """Waits for the clean end; returns the seconds from `since` until then."""
    assert daemon.process.wait(60) == 0, daemon.log()[-4000:]
    return time.monotonic() - since


# ---- notifications ----


def test_clients_are_notified_of_a_drain_and_continue(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(cpu_count=2, drain_timeout="60s")
    node = daemon.connect()
    gpu = node.device(0)
    x = gpu.full(1 << 21, 7, np.uint8)
    gpu.synchronize()
    assert not node.draining
    began = terminate(daemon)
    wait_until(lambda: node.draining, "the news of the drain")
    assert node.describe().draining and daemon.status()["draining"]
    assert daemon.get("/readyz").status == 503 and daemon.get("/healthz").status == 200
    with pytest.raises(hearth.UnavailableError) as caught:
        daemon.connect()
    assert caught.value.reason == "DRAINING" and caught.value.fix
    assert caught.value.retry_after is not None and 10 < caught.value.retry_after <= 60
    assert (x.get() == 7).all()  # on a separate stream
    saxpy_works(node.devices[-1])
    node.close()
    assert ended(daemon, began) < SOON


def test_the_event_on_every_stream(start_daemon: StartDaemon) -> None:
    """The event is sent on open streams, and on streams that are opened afterwards."""
    daemon = start_daemon(cpu_count=2, drain_timeout="60s")
    with Raw(daemon.unix) as raw:
        with raw.execute() as early:
            began = terminate(daemon)
            event = early.receive().event
            assert event.WhichOneof("kind") == "draining" and 15e9 < event.draining.deadline_ns <= 60e9
            assert early.ask(c.Command(flush=c.Flush())).HasField("done")
        with raw.execute(device=len(raw.opened.devices) - 1) as late:
            event = late.receive().event
            assert event.WhichOneof("kind") == "draining" and event.draining.deadline_ns <= 60e9
        told = refused(raw.node.OpenSession, node_pb2.OpenSessionRequest(), timeout=10)
        assert told.reason == "DRAINING" and told.code == grpc.StatusCode.UNAVAILABLE.value[0] and told.retry_after_s
    assert ended(daemon, began) < SOON


def test_drain_by_an_operator_and_then_by_a_signal(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(drain_timeout="60s")
    with Raw(daemon.unix) as raw, raw.execute() as stream:
        assert raw.node.Drain(node_pb2.DrainRequest(), timeout=10).sessions == 1
        assert raw.node.Drain(node_pb2.DrainRequest(), timeout=10).sessions == 1
        assert stream.receive().event.draining.deadline_ns == 0, "no deadline is set"
        assert daemon.get("/readyz").status == 503
        assert refused(raw.node.OpenSession, node_pb2.OpenSessionRequest(), timeout=10).reason == "DRAINING"
        began = terminate(daemon)
        assert 45e9 < stream.receive().event.draining.deadline_ns <= 60e9
    assert ended(daemon, began) < SOON


def frames(connection: socket.socket) -> Iterator[tuple[int, bytes]]:
    """Yields the type and payload of HTTP/2 frames until the other side closes (RFC 9113, section 4.1)."""
    data = b""
    while True:
        while len(data) >= 9 and len(data) >= 9 + (size := int.from_bytes(data[:3], "big")):
            yield data[3], data[9 : 9 + size]
            data = data[9 + size :]
        try:
            more = connection.recv(1 << 16)
        except ConnectionError:
            return
        if not more:
            return
        data += more


GOAWAY, NO_ERROR = 7, 0


def test_idle_connection_receives_goaway(start_daemon: StartDaemon) -> None:
    """GOAWAY without an error: the client opens a new connection for its next call, and loses none."""
    daemon = start_daemon()
    host, _, port = daemon.grpc.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.settimeout(10)
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        seen = frames(connection)
        next(seen)
        began = terminate(daemon)
        away = next(payload for kind, payload in seen if kind == GOAWAY)
        assert struct.unpack(">I", away[4:8]) == (NO_ERROR,)
    assert ended(daemon, began) < SOON


# ---- work that is waited for ----


def test_running_work_completes_during_a_drain(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(drain_timeout="60s")
    node = daemon.connect()
    gpu = node.device(0)
    with gated(gpu) as gate:
        x = gpu.zeros(1, np.int32)
        gate.hold(x)
        began = terminate(daemon)
        wait_until(lambda: node.draining)
        gate.open()
        assert x.get()[0] == 1
    node.close()
    assert ended(daemon, began) < SOON


def test_idle_session_has_the_same_drain_timeout(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(drain_timeout="700ms")
    node = daemon.connect()
    node.device(0).synchronize()
    took = ended(daemon, terminate(daemon))
    assert 0.65 < took < 0.7 + SOON
    with pytest.raises(hearth.HearthError):
        node.device(0).synchronize()
    node.close()


def test_drain_waits_for_a_disconnected_client_until_its_lease_ends(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(drain_timeout="20s", sessions={"lease": "800ms"})
    code = "import hearth, os, sys; n = hearth.connect(sys.argv[1]); n.device(0).synchronize(); os.kill(os.getpid(), 9)"
    subprocess.run(
        [sys.executable, "-c", code, daemon.unix], env=environment(PYTHONPATH=os.pathsep.join(sys.path)), check=False
    )
    assert ended(daemon, terminate(daemon)) < 0.8 + SOON


def test_endless_kernel_ends_at_the_drain_timeout(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(drain_timeout="300ms")
    with daemon.connect() as node:
        x = endless(node.device(0))
        assert ended(daemon, terminate(daemon)) < 0.3 + SOON
        with pytest.raises(hearth.HearthError):
            x.get()
    assert "device_killed" not in daemon.log()


def test_drain_with_a_rank_that_never_presents(start_daemon: StartDaemon) -> None:
    """A collective that waits on every device fails with its session."""
    daemon = start_daemon(cpu_count=2, drain_timeout="300ms")
    raw = Raw(daemon.unix)
    if len(raw.opened.devices) < 2:
        pytest.skip("needs two devices")
    raw.buffer(bytes(16))
    command = c.AllReduce(
        devices=[0, 1], sequence=1, source=1, destination=1, count=1, dtype="int8", op=c.REDUCE_OP_SUM,
        timeout_ns=60 * 10**9,
    )  # fmt: skip
    waiting = raw.device.AllReduce.future(device_pb2.AllReduceRequest(target=raw.target(), command=command))
    raw.call("Flush", c.Flush(), device=1)
    assert ended(daemon, terminate(daemon)) < 0.3 + SOON
    assert refusal_of(waiting.exception()).reason == Reason.SESSION_EXPIRED
    raw.channel.close()


def test_drain_waits_for_a_running_compile(start_daemon: StartDaemon) -> None:
    """The compile worker ends with the daemon."""
    daemon = start_daemon()
    raw = Raw(daemon.unix)
    load = c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=SLOW.encode())
    waiting = raw.device.LoadModule.future(device_pb2.LoadModuleRequest(target=raw.target(), command=load))
    wait_until(lambda: compiling(daemon), "the compile")
    assert ended(daemon, terminate(daemon)) < SOON
    assert not daemon.left_behind()
    assert refusal_of(waiting.exception()).reason == Reason.SESSION_EXPIRED
    raw.channel.close()


# ---- immediate ends ----


def test_second_signal_during_a_drain(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(cpu_count=2, drain_timeout="1h")
    node = daemon.connect()
    x = endless(node.device(0))
    terminate(daemon)
    wait_until(lambda: node.draining)
    time.sleep(SAME_SIGNAL_S)
    assert ended(daemon, terminate(daemon)) < SOON
    assert not daemon.left_behind()
    del x
    node.close()


def test_second_signal_during_the_stop(start_daemon: StartDaemon) -> None:
    """The daemon waits for a device process that does not respond; the second signal ends the wait."""
    daemon = start_daemon(drain_timeout="0s")
    node = daemon.connect()
    node.device(0).synchronize()
    os.kill(daemon.device_pid(), signal.SIGSTOP)
    terminate(daemon)
    time.sleep(1.0)
    assert daemon.process.poll() is None, "it waits"
    assert ended(daemon, terminate(daemon)) < 4, "without a stop it waits for five seconds"
    node.close()


def test_unresponsive_device_process_is_killed(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(cpu_count=1)
    os.kill(daemon.device_pid(), signal.SIGSTOP)
    assert ended(daemon, terminate(daemon)) < 5 + SOON
    assert "device_killed" in daemon.log()


# ---- during the start ----


@pytest.mark.parametrize("seed", range(4))
def test_signal_during_the_start(cache: Path, tmp_path: Path, seed: int) -> None:
    """Whenever the signal arrives, the daemon ends and leaves no resources."""
    mark = f"starting-{os.getpid()}-{seed}-{time.monotonic_ns()}"
    arguments = ["--backend", BACKEND, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--lanes", ""]
    arguments += ["--unix", str(tmp_path / "s")]
    process = subprocess.Popen(
        [sys.executable, "-m", "hearthd", "serve", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(**{MARK: mark, "HEARTH_CACHE_DIR": str(cache)}),
    )  # fmt: skip
    time.sleep(random.Random(seed).uniform(0.1, 1.2))  # a random moment
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    _, said = process.communicate(timeout=30)
    assert process.returncode in (0, -signal.SIGTERM), said  # -15: the handler was not installed yet
    assert time.monotonic() - began < LATE
    wait_until(lambda: not marked(mark), "the end of its processes")
    assert not (tmp_path / "s").exists() and "Traceback" not in said


# ---- systemd ----


def _listen(end: socket.socket, told: list[str]) -> None:
    with contextlib.suppress(OSError):  # the test has ended
        while True:
            told.append(end.recv(4096).decode())


def test_messages_to_systemd_during_a_drain(
    start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """READY; then STOPPING, with repeated requests for more time while it drains."""
    told: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        threading.Thread(target=_listen, args=(end, told), daemon=True).start()
        daemon = start_daemon(drain_timeout="60s")
        wait_until(lambda: any("READY=1" in entry.splitlines() for entry in told), "READY")
        node = daemon.connect()
        node.device(0).synchronize()
        began = terminate(daemon)
        wait_until(lambda: sum("Draining 1 sessions" in entry for entry in told) >= 2, "two messages of the drain")
        node.close()
        assert ended(daemon, began) < SOON
        wait_until(lambda: sum("STOPPING=1" in entry.splitlines() for entry in told) >= 3, "the message of the stop")
        stopping = [entry for entry in told if "STOPPING=1" in entry.splitlines()]
        assert all("EXTEND_TIMEOUT_USEC=15000000" in entry.splitlines() for entry in stopping)
