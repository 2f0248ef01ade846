"""Sessions: the ways in which they end, their objects, and what other sessions can see of them."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from tests.support.client.internals import handle_of
from tests.support.daemon.client_process import run_python
from tests.support.daemon.harness import DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.kernels import common, gated, saxpy_works
from tests.support.daemon.raw import Raw, refusal_of
from tests.support.daemon.renewals import lease_renewed


def test_close_frees_all_that_was_held(lossy: DaemonProcess) -> None:
    node = lossy.connect()
    gpu = node.device(0)
    arrays = [gpu.full(1 << 20, 1, np.uint8) for _ in range(10)]
    streams = [gpu.stream() for _ in range(5)]
    saxpy_works(gpu)
    gpu.synchronize()
    assert lossy.gauge("memory_in_use_bytes") >= 10 << 20
    node.close()
    node.close()
    gauges = lossy.status()["devices"][0]["gauges"]
    assert [gauges[name] for name in ("sessions", "buffers", "modules", "memory_in_use_bytes")] == [0, 0, 0, 0]
    assert not lossy.status()["sessions"] and node.closed and "closed" in repr(node)
    for use in (arrays[0].get, streams[0].synchronize, lambda: gpu.zeros(1), node.describe, lambda: node.device(0)):
        with pytest.raises(hearth.ClosedError):
            use()


def test_close_waits_for_running_work(lossy: DaemonProcess) -> None:
    """The memory that the kernel uses is not given to others before the kernel has ended."""
    with lossy.connect() as node:
        gpu = node.device(0)
        for _ in range(200):
            x = gpu.full(1 << 16, 3, np.uint8)
            common(gpu, "add_one")((64,), (256,), (x, np.int32(1 << 14)))
    assert lossy.gauge("memory_in_use_bytes") == 0
    with lossy.connect() as node:
        saxpy_works(node.device(0))


def test_a_dropped_node_is_closed(daemon: DaemonProcess) -> None:
    node = daemon.connect(name="dropped")
    node.device(0).zeros(4)
    number = node.session_id
    del node
    wait_until(lambda: number not in [session["id"] for session in daemon.status()["sessions"]])


def test_sessions_are_listed(daemon: DaemonProcess) -> None:
    with daemon.connect(name="first of two") as first, daemon.connect() as second:
        second.device(0).synchronize()
        listed = {session.session_id: session for session in first.sessions()}
        mine, other = listed[first.session_id], listed[second.session_id]
        assert mine.client_name == "first of two" and not mine.connected and 0 < mine.lease_left <= 30
        assert str(os.getpid()) in other.client_name and other.connected and other.devices == (0,)
        assert mine.opened <= other.opened


def test_two_clients_share_nothing(daemon: DaemonProcess) -> None:
    with daemon.connect() as first, daemon.connect() as second:
        x, y = (node.device(0).full(100, value, np.int32) for node, value in ((first, 1), (second, 2)))
        assert handle_of(x) == handle_of(y), "the same number in two sessions"
        common(first.device(0), "add_one")((1,), (2000,), (x, np.int32(100)))  # fails
        common(second.device(0), "add_one")((1,), (128,), (y, np.int32(100)))
        second.device(0).synchronize()
        assert (y.get() == 3).all()
        with pytest.raises(hearth.LaunchError):
            first.device(0).synchronize()
        assert first.device(0).memory_usage().allocations == 1
        first.close()
        assert (y.get() == 3).all()


def test_one_client_does_not_block_another(daemon: DaemonProcess) -> None:
    with daemon.connect() as first, daemon.connect() as second, gated(first.device(0)) as gate:
        gpu = second.device(0)
        add_one, x = common(gpu, "add_one"), gpu.zeros(8, np.int32)
        add_one((1,), (8,), (x, np.int32(8)))
        assert (x.get() == 1).all()
        gate.hold()
        add_one((1,), (8,), (x, np.int32(8)))
        assert (x.get() == 2).all()
        assert not first.device(0).default_stream.done


def test_many_threads_on_one_connection(gpu: hearth.Device) -> None:
    add_one = common(gpu, "add_one")
    shared = gpu.zeros(16, np.int32)

    def work(seed: int) -> bool:
        with gpu.stream():
            x = gpu.full(1000 + seed, seed, np.int32)
            for _ in range(50):
                add_one((8,), (256,), (x, np.int32(1000 + seed)))
                add_one((1,), (16,), (shared, np.int32(16)))
            return bool((x.get() == seed + 50).all())

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(32)))
    assert (shared.get() == 32 * 50).all()


UPLOADING = """
import sys, threading, hearth, numpy as np
node = hearth.connect(sys.argv[1])
gpu = node.device(0)
held = gpu.full(5 << 20, 7, np.uint8)
gpu.synchronize()
def stop(done, total):
    if done >= 8 << 20:
        print("half way", flush=True)
        sys.stdin.read()
gpu.asarray(np.zeros(32 << 20, np.uint8), progress=stop)
"""


def test_memory_of_a_client_killed_during_an_upload_is_freed(brief: DaemonProcess) -> None:
    client = run_python(UPLOADING, brief.unix)
    try:
        assert client.stdout is not None and client.stdout.readline() == "half way\n"
        assert brief.gauge("memory_in_use_bytes") == 37 << 20
        client.send_signal(signal.SIGKILL)
        client.wait()
        wait_until(lambda: brief.gauge("memory_in_use_bytes") == 0, "the memory's return", 10)
        wait_until(lambda: not brief.status()["sessions"])
        assert brief.gauge("staging_bytes") == 0
        with brief.connect() as node:
            saxpy_works(node.device(0))
    finally:
        client.kill()
        client.communicate()


def test_session_ends_after_its_lease_without_a_client(brief: DaemonProcess, start_daemon: StartDaemon) -> None:
    with used_session(brief):
        wait_until(lambda: not brief.status()["sessions"])
        wait_until(lambda: brief.gauge("memory_in_use_bytes") == 0)
    daemon = start_daemon(sessions={"lease": "8s"})
    with daemon.connect() as node:
        x = node.device(0).full(4, 1, np.int32)
        with daemon.connect() as idle:  # its client renews its lease
            wait_until(lease_renewed(daemon, idle), "a renewal")
            assert idle.device(0).zeros(1).item() == 0
        assert (x.get() == 1).all()


def used_session(daemon: DaemonProcess) -> Raw:
    """Returns a session with a buffer, which its client no longer uses. Opens another one if the lease, which
    may be short, ends before the session has its buffer."""
    while True:
        raw = Raw(daemon.unix)
        try:
            raw.buffer(bytes(1000))
            return raw
        except grpc.RpcError as error:
            assert refusal_of(error).reason == Reason.SESSION_EXPIRED
            raw.channel.close()


FORKING = """
import os, sys, hearth, numpy as np
node = hearth.connect(sys.argv[1])
gpu = node.device(0)
x = gpu.asarray(np.arange(10))
gpu.synchronize()
read, write = os.pipe()
child = os.fork()
if child == 0:
    told = []
    for use in (x.get, gpu.synchronize, lambda: gpu.zeros(3), node.describe):
        try:
            use()
        except hearth.ClosedError as error:
            told.append("forked" in str(error))
    node.close()
    os.write(write, repr(told).encode())
    os._exit(0)
os.waitpid(child, 0)
print(os.read(read, 1000).decode(), x.get().sum(), (x.copy().get() == np.arange(10)).all(), flush=True)
grandchild = os.fork()
if grandchild == 0:
    del x, gpu, node
    with hearth.connect(sys.argv[1]) as fresh:
        ok = fresh.device(0).ones(4).get().sum() == 4
    os._exit(0 if ok else 1)
status = os.waitpid(grandchild, 0)[1]
print(os.waitstatus_to_exitcode(status), x.get().sum())
"""


def test_fork_is_refused_in_the_child_and_harms_no_session(daemon: DaemonProcess) -> None:
    client = run_python(FORKING, daemon.unix)
    out, _ = client.communicate(timeout=60)
    assert out.splitlines()[0] == "[True, True, True, True] 45 True"
    assert out.splitlines()[1].split()[1] == "45"
    assert client.returncode == 0


OPENING = """
import os, sys, hearth
sys.stderr = None
node = hearth.connect(sys.argv[1])
x = node.device(0).zeros(9)
print(node.session_id, flush=True)
"""


@pytest.mark.parametrize("end", ["pass", "sys.exit(3)", "raise ValueError", "os._exit(0) if not node.close() else 0"])
def test_a_client_that_ends_closes_its_session(daemon: DaemonProcess, end: str) -> None:
    client = run_python(f"{OPENING}\n{end}", daemon.unix)
    out, _ = client.communicate(timeout=60)
    assert out.strip() not in [session["id"] for session in daemon.status()["sessions"]]


def test_maximum_number_of_sessions(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(sessions={"max": 2})
    with daemon.connect(), daemon.connect() as second:
        with pytest.raises(hearth.QuotaExceededError, match="2 sessions are open") as caught:
            daemon.connect()
        assert caught.value.reason == "SESSION_LIMIT" and caught.value.retry_after
        second.close()
        daemon.connect().close()


@pytest.mark.parametrize("way", ["grpc", "unix"])
def test_tcp_and_unix(daemon: DaemonProcess, way: str) -> None:
    with hearth.connect(daemon.grpc if way == "grpc" else daemon.unix) as node:
        host = np.random.default_rng(1).random(1 << 19)
        np.testing.assert_array_equal(node.device(0).asarray(host).get(), host)


def test_absent_daemon() -> None:
    with pytest.raises(hearth.ConnectError, match="hearthd serve"):
        hearth.connect("127.0.0.1:1", timeout=2)
    with pytest.raises(hearth.ConnectError):
        hearth.connect("unix:/nowhere/hearth.sock", timeout=2)


def test_unclaimed_uploads_are_bounded(raw: Raw) -> None:
    """Bytes that no Write has requested are collected only up to a limit."""
    release = threading.Event()

    def messages(transfer: int) -> object:
        yield device_pb2.UploadRequest(session_token=raw.token, transfer=transfer, data=bytes(100))
        release.wait(30)

    uploads = [raw.device.Upload.future(messages(transfer)) for transfer in range(1, 101)]
    wait_until(lambda: sum(upload.done() for upload in uploads) >= 36, "the refusal of some")
    release.set()
    buffer = raw.buffer(b"fine")
    assert raw.read(buffer, 4) == b"fine"
    for upload in uploads:
        upload.cancel()


@pytest.mark.usefixtures("pair")
def test_calls_of_a_session_are_bounded(raw: Raw) -> None:
    raw.buffer(bytes(16))
    request = device_pb2.AllReduceRequest(
        target=raw.target(),
        command=c.AllReduce(
            devices=[0, 1], sequence=1, source=1, destination=1, count=1, dtype="int8", op=c.REDUCE_OP_SUM,
            timeout_ns=60 * 10**9,
        ),
    )  # fmt: skip
    # its other rank never presents its part; all other work queues after it
    waiting = raw.device.AllReduce.future(request)
    sync = device_pb2.SyncRequest(target=raw.target(), command=c.Sync())
    calls = [raw.device.Sync.future(sync) for _ in range(400)]
    wait_until(lambda: any(call.done() for call in calls), "the refusal of some")
    refusals = [call for call in calls if call.done()]
    assert all("RESOURCE_EXHAUSTED" in str(call.code()) for call in refusals)
    for call in (*calls, waiting):
        call.cancel()
