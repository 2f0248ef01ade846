"""Stripes that break: recovery from each break, killed processes, and TLS."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hearth
from hearth.transfer.striped import StripedDownload, StripedUpload
from hearth.transport import grpc as transport
from hearth.transport.stripe import Stripe, StripeTiming
from hearth_proto.v1 import device_pb2
from tests.support.client.internals import session_of
from tests.support.daemon.cutter import Budget, Cutter, random_cuts
from tests.support.daemon.harness import DaemonProcess, StartDaemon, environment, wait_until
from tests.support.daemon.kernels import saxpy_works
from tests.support.daemon.secured import SecuredDaemon
from tests.support.daemon.striped import (
    MIB,
    STRIPES,
    connect,
    dispatched,
    live,
    prepare,
    retrying,
    settled,
    there_and_back,
    threads_of,
    unhurried,
    values,
)


@pytest.fixture
def gpu(daemon: DaemonProcess) -> Iterator[hearth.Device]:
    with connect(daemon.grpc) as node:
        yield node.device(0)


# ---- connections that break ----


def test_command_stream_breaks_while_stripes_are_open(lossy: DaemonProcess) -> None:
    """The stripes and the session continue."""
    with Cutter(lossy.grpc) as cutter, connect(cutter.address) as node:
        gpu = node.device(0)
        there_and_back(gpu, 9 * MIB)
        done = threading.Event()

        def work() -> None:
            for turn in range(5):
                there_and_back(gpu, 30 * MIB, turn)
            done.set()

        worker = threading.Thread(target=work)
        worker.start()
        for _ in range(6):
            if not done.wait(0.2):
                cutter.cut()
        worker.join(60)
        assert done.is_set() and cutter.cuts > 0


@pytest.mark.parametrize("way", ["up", "down", "answer"])
def test_stalled_stripes_and_grpc_connection_recover(
    lossy: DaemonProcess, by_way_of: Any, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A proxy between client and daemon stops forwarding without closing connections: gRPC detects it by its pings, but
    stripes have none."""
    times = {"grpc.keepalive_time_ms": 200, "grpc.keepalive_timeout_ms": 200, "grpc.http2.ping_timeout_ms": 200}
    monkeypatch.setattr(transport, "_OPTIONS", tuple((dict(transport._OPTIONS) | times).items()))
    host = values(40 * MIB)
    with Cutter(lossy.grpc) as front, connect(front.address) as node, Cutter(lossy.lanes) as cutter:
        by_way_of(node, cutter)
        gpu = node.device(0)
        prepare(gpu, timing=StripeTiming(silent=0.5))
        x = gpu.asarray(host)

        def silence() -> None:
            cutter.stall()
            front.stall()

        place, taken, placed = StripedDownload.place, StripedUpload.chunk_acknowledged, StripedDownload.chunk_placed

        def placing(download: StripedDownload, *arguments: Any) -> Any:
            if download.inspect().done == 3:
                silence()
            return place(download, *arguments)

        def taking(upload: StripedUpload, *arguments: Any) -> None:
            if upload.inspect().done == 3:
                silence()
            taken(upload, *arguments)

        def at_the_end(download: StripedDownload, *arguments: Any) -> None:
            if download.inspect().done == download.inspect().chunks - 1:
                silence()
            placed(download, *arguments)

        if way == "up":
            monkeypatch.setattr(StripedUpload, "chunk_acknowledged", taking)
            x.set(host[::-1].copy())
            assert (x.get() == host[::-1]).all()
        else:
            name = "place" if way == "down" else "chunk_placed"
            monkeypatch.setattr(StripedDownload, name, placing if way == "down" else at_the_end)
            assert (x.get() == host).all()


@pytest.mark.parametrize("seed", range(6))
def test_cut_at_any_byte(lossy: DaemonProcess, by_way_of: Any, seed: int) -> None:
    """Each connection breaks at some time, in one direction or the other."""
    with connect(lossy.grpc) as node, Cutter(lossy.lanes, random_cuts(seed, 12 * MIB)) as cutter:
        by_way_of(node, cutter)
        gpu = node.device(0)
        retrying(gpu)
        for turn in range(3):
            there_and_back(gpu, 10 * MIB + seed, seed + turn)
        assert cutter.cuts > 0
    settled(lossy)


def test_one_stripe_breaks(lossy: DaemonProcess, by_way_of: Any) -> None:
    """The other stripes transfer its chunks."""

    def plan(number: int) -> Budget:
        return Budget(up=3 * MIB) if number == 1 else Budget()

    with connect(lossy.grpc) as node, Cutter(lossy.lanes, plan) as cutter:
        by_way_of(node, cutter)
        for _ in range(30):  # repeated, because a slow stripe may carry little
            there_and_back(node.device(0), 40 * MIB)
            if cutter.cuts:
                break
        assert cutter.cuts == 1 and cutter.connections == STRIPES + 1  # the download opened another stripe


def test_all_stripes_break_during_a_dispatch(lossy: DaemonProcess, by_way_of: Any) -> None:
    """Uploads and downloads repeatedly: each transfer continues over other stripes, or over gRPC."""
    rng = random.Random(5)
    plan = lambda number: Budget(up=rng.randrange(MIB, 30 * MIB), down=rng.randrange(MIB, 30 * MIB))  # noqa: E731
    with connect(lossy.grpc) as node, Cutter(lossy.lanes, plan) as cutter:
        by_way_of(node, cutter)
        gpu = node.device(0)
        retrying(gpu)
        for seed in range(4):
            dispatched(gpu, 20 * MIB + seed, seed)
        assert cutter.cuts > 0
    settled(lossy)


@pytest.mark.parametrize("count", [1, STRIPES])
@pytest.mark.parametrize("move", [there_and_back, dispatched])
def test_lost_completion_report_is_repeated(
    lossy: DaemonProcess, monkeypatch: pytest.MonkeyPatch, count: int, move: Callable[..., None]
) -> None:
    """The daemon has received a whole upload, and the stripe breaks that should report it: the daemon reports it again
    over another stripe."""
    hear, deaf = StripedUpload.chunk_acknowledged, list[Stripe]()

    def taken(upload: StripedUpload, stripe: Stripe, offset: int) -> None:
        state = upload.inspect()
        last = state.done == state.chunks - 1 or offset == state.size
        if last and not deaf:
            deaf.append(stripe)
            stripe.close()
        if stripe not in deaf:
            hear(upload, stripe, offset)

    monkeypatch.setattr(StripedUpload, "chunk_acknowledged", taken)
    with connect(lossy.grpc, count) as node:
        for _ in range(30):  # messages on the other stripes may arrive sooner
            move(node.device(0), 20 * MIB)
            if deaf:
                break
        assert deaf
    settled(lossy)


def test_all_stripes_break_and_are_reopened(lossy: DaemonProcess, by_way_of: Any) -> None:
    with connect(lossy.grpc) as node, Cutter(lossy.lanes) as cutter:
        by_way_of(node, cutter)
        gpu = node.device(0)
        there_and_back(gpu, 9 * MIB)
        for way in ("up", "down"):
            begin = getattr(cutter, way)
            done = threading.Event()
            worker = threading.Thread(target=lambda done=done: (there_and_back(gpu, 64 * MIB), done.set()))
            worker.start()
            wait_until(lambda way=way, begin=begin: getattr(cutter, way) > begin + 5 * MIB, "bytes in transit")
            cutter.cut(reset=way == "up")
            worker.join(60)
            assert done.is_set()


def test_fallback_to_grpc_if_no_stripe_can_be_opened(lossy: DaemonProcess, by_way_of: Any) -> None:
    """The transfer continues over gRPC, with the same number and from the same position."""
    with connect(lossy.grpc) as node, Cutter(lossy.lanes) as cutter:
        by_way_of(node, cutter)
        gpu = node.device(0)
        retrying(gpu)
        there_and_back(gpu, 9 * MIB)
        for way in ("up", "down"):
            cutter.refuse(False)
            there_and_back(gpu, 9 * MIB)
            begin = getattr(cutter, way)
            done = threading.Event()
            worker = threading.Thread(target=lambda done=done: (there_and_back(gpu, 64 * MIB), done.set()))
            worker.start()
            wait_until(lambda way=way, begin=begin: getattr(cutter, way) > begin + 5 * MIB, "bytes in transit")
            cutter.refuse()
            cutter.cut()
            worker.join(60)
            assert done.is_set() and live(gpu) == 0
    settled(lossy)


def test_stripe_port_without_an_answer(lossy: DaemonProcess, by_way_of: Any) -> None:
    with connect(lossy.grpc) as node, Cutter(lossy.lanes) as cutter:
        by_way_of(node, cutter)
        cutter.refuse()
        there_and_back(node.device(0), 9 * MIB)
        assert live(node.device(0)) == 0


# ---- processes that are killed ----


def test_the_device_process_is_killed(lossy: DaemonProcess, by_way_of: Any) -> None:
    """The client gets a clear error, and the next generation has new stripes."""
    with connect(lossy.grpc) as node, Cutter(lossy.lanes) as cutter:
        by_way_of(node, cutter)
        gpu = node.device(0)
        for download in (False, True):
            host = values(64 * MIB)
            x = gpu.asarray(host)
            sum_before = cutter.up + cutter.down
            caught: list[BaseException] = []

            def work(x: Any = x, host: Any = host, download: bool = download, caught: Any = caught) -> None:
                try:
                    for _ in range(50):
                        x.get() if download else x.set(host)
                    x.device.synchronize()
                except BaseException as error:
                    caught.append(error)

            worker = threading.Thread(target=work)
            worker.start()
            wait_until(lambda before=sum_before: cutter.up + cutter.down > before + 8 * MIB, "bytes in transit")
            os.kill(lossy.device_pid(), signal.SIGKILL)
            worker.join(60)
            assert not worker.is_alive()
            assert caught and isinstance(caught[0], hearth.HearthError), caught
            assert caught[0].reason in ("DEVICE_LOST", "BUFFER_LOST"), caught
            wait_until(lambda: lossy.status()["devices"][0]["state"] == "serving", "the next generation")
            with contextlib.suppress(hearth.DeviceLostError):  # of one-way commands in progress
                gpu.synchronize()
            there_and_back(gpu, 20 * MIB)
            assert live(gpu) > 0


CLIENT = """
import sys, threading, numpy as np, hearth
from hearth.transfer import striping
striping.cores = lambda: 4
node = hearth.connect(sys.argv[1])
gpu = node.device(0)
host = np.ones(32 << 20, np.uint8)
x = gpu.asarray(host)
threading.Thread(target=lambda: [x.get() for _ in iter(int, 1)], daemon=True).start()
print("going", flush=True)
while True:
    gpu.asarray(host)
"""


def test_clients_are_killed(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(sessions={"lease": "4s"})
    pid = daemon.device_pid()
    with connect(daemon.grpc) as node:
        there_and_back(node.device(0), 9 * MIB)
        stripes = live(node.device(0))
        before = len(threads_of(pid))
        for turn in range(3):
            client = subprocess.Popen(
                [sys.executable, "-c", CLIENT, daemon.grpc], stdout=subprocess.PIPE, env=environment()
            )
            assert client.stdout is not None and client.stdout.readline()
            time.sleep(random.Random(turn).uniform(0.0, 0.3))
            client.kill()
            client.wait()
            client.stdout.close()
            settled(daemon, stripes)
        there_and_back(node.device(0), 9 * MIB)
        streams = 3  # threads of the CPU backend: one for each concurrent client, then reused
        wait_until(lambda: len(threads_of(pid)) <= before + streams, "the stripes' threads to end")
    saxpy_works(hearth.connect(daemon.unix).device(0))


def test_daemon_stops_during_a_transfer(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with connect(daemon.grpc, timeout=2.0) as node:
        gpu = node.device(0)
        x = gpu.asarray(values(32 * MIB))
        caught: list[BaseException] = []

        def work() -> None:
            try:
                for _ in itertools.count():
                    x.get()
            except BaseException as error:
                caught.append(error)

        worker = threading.Thread(target=work)
        worker.start()
        daemon.stop()
        worker.join(60)
        assert caught and isinstance(caught[0], hearth.HearthError)


# ---- TLS ----


@pytest.fixture(scope="module")
def secured_daemon(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredDaemon]:
    lent = SecuredDaemon(cache, tmp_path_factory.mktemp("tls"))
    yield lent
    lent.close()


def test_over_tls(secured_daemon: SecuredDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    unhurried(monkeypatch)
    daemon = secured_daemon.lend()
    with connect(f"https://{daemon.grpc}", token=secured_daemon.token, ca=secured_daemon.authority.pem) as node:
        gpu = node.device(0)
        for size in (8 * MIB + 1, 21 * MIB + 5):
            there_and_back(gpu, size)
        assert live(gpu) == STRIPES


@pytest.mark.parametrize("seed", range(2))
def test_cut_over_tls(secured_daemon: SecuredDaemon, by_way_of: Any, seed: int) -> None:
    daemon = secured_daemon.lend()
    with (
        connect(f"https://{daemon.grpc}", token=secured_daemon.token, ca=secured_daemon.authority.pem) as node,
        Cutter(daemon.lanes, random_cuts(seed, 8 * MIB)) as cutter,
    ):
        by_way_of(node, cutter)
        for turn in range(2):
            there_and_back(node.device(0), 9 * MIB + turn, turn)
        assert cutter.cuts


def test_another_certificate_is_not_trusted(secured_daemon: SecuredDaemon) -> None:
    """A proxy in between has another certificate: the client uses gRPC, which is authenticated."""
    daemon = secured_daemon.lend()
    from hearthd.front.lanes.certificates import make

    with connect(f"https://{daemon.grpc}", token=secured_daemon.token, ca=secured_daemon.authority.pem) as node:
        transport: Any = session_of(node).transport
        ask = transport.open_bulk

        def open_bulk(request: device_pb2.OpenBulkRequest) -> device_pb2.OpenBulkResponse:
            answer = ask(request)
            assert answer.certificate and all(len(ticket) == 32 for ticket in answer.tickets)
            answer.certificate = make("another daemon").der
            return answer

        transport.open_bulk = open_bulk
        there_and_back(node.device(0), 9 * MIB)
        assert live(node.device(0)) == 0
