"""Lanes: the clients that get one, the same results as over gRPC, and lossless recovery after a cut."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import hearth
from hearth.transport import base as transport
from hearth.transport import lane as lanes
from tests.support.client.internals import connection_of
from tests.support.daemon.harness import DaemonProcess, StartDaemon, environment, wait_until
from tests.support.daemon.kernels import COMMON, common, gated, saxpy_works
from tests.support.daemon.lane_cuts import cut
from tests.support.daemon.resumed_programs import Counter, Program, outages
from tests.support.daemon.tenants import tenant, tenants
from tests.support.folders import short_folder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="lanes are Unix sockets with descriptors passed")


def channel(gpu: hearth.Device) -> bool:
    """Returns True if the device is currently used over a lane."""
    return connection_of(gpu).attachment().channel is not None


class LaneCutter:
    """A proxy between clients of this process and the lane socket: each connection ends after a random number of
    bytes."""

    def __init__(self, folder: Path, budget: random.Random, most: int) -> None:
        self.path = str(folder / "lane")
        self._budget, self._most = budget, most
        self._target = ""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._threads: list[threading.Thread] = []
        self.connections = self.cuts = 0
        self._start(self._accept)

    def stand_before(self, path: str) -> str:
        self._target = path
        return self.path

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _start(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                daemon = socket.socket(socket.AF_UNIX)
                daemon.connect(self._target)
                self.connections += 1
                left = [self._budget.randrange(60, self._most)]
                for source, sink in ((client, daemon), (daemon, client)):
                    self._start(self._pump, source, sink, left)

    def _pump(self, source: socket.socket, sink: socket.socket, left: list[int]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(64 << 10):
                left[0] -= len(data)
                if left[0] < 0:
                    self.cuts += 1
                    data = data[: left[0]]
                sink.sendall(data)
                if left[0] < 0:
                    break
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


# ---- the clients that get a lane ----


def test_client_on_the_unix_socket_has_a_lane(daemon: DaemonProcess) -> None:
    with daemon.connect() as node:
        for gpu in node.devices:
            saxpy_works(gpu)
            assert channel(gpu)
        carried = [connection_of(gpu).attachment().channel for gpu in node.devices]
    wait_until(lambda: all(each is not None and each.over for each in carried), "the lanes' end")


def test_no_lane_over_tcp_or_with_lanes_disabled(daemon: DaemonProcess) -> None:
    for node in (hearth.connect(daemon.grpc), daemon.connect(lanes=False)):
        with node:
            saxpy_works(node.device(0))
            assert not channel(node.device(0))


def test_a_daemon_without_lanes(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(lanes={"enabled": False})
    with daemon.connect() as node:
        saxpy_works(node.device(0))
        assert not channel(node.device(0))
    assert not Path(f"{daemon.unix.removeprefix('unix:')}.lane").exists()


def test_tenant_with_a_bounded_queue_has_no_lane(start_daemon: StartDaemon) -> None:
    config, tokens = tenants("free", tenant("bounded", quotas={"queued_commands": 100}))
    daemon = start_daemon(**config)
    for name, expected in (("free", True), ("bounded", False)):
        with daemon.connect(token=tokens[name]) as node:
            saxpy_works(node.device(0))
            assert channel(node.device(0)) is expected


def test_invalid_ticket_closes_connection(daemon: DaemonProcess) -> None:
    path = f"{daemon.unix.removeprefix('unix:')}.lane"
    with daemon.connect() as node:
        saxpy_works(node.device(0))
        assert lanes.open_lane(path, b"\0" * 32) is None
        for data in (b"", b"\0" * 20, os.urandom(4096), b"GET / HTTP/1.1\r\n\r\n"):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(path)
                stranger.sendall(data)
                stranger.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionError):
                    assert stranger.recv(100) == b""
        saxpy_works(node.device(0))


# ---- work over lanes ----


def test_many_concurrent_clients(daemon: DaemonProcess) -> None:
    """Each client has separate threads; each result is correct."""

    def client(seed: int) -> bool:
        with daemon.connect() as node, ThreadPoolExecutor(2) as pool:
            gpu = node.device(seed % len(node.devices))
            program = [Program(seed + step, 150) for step in range(2)]
            alone = list(pool.map(lambda each: each.run(gpu), program))
            assert channel(gpu)
            return all(launched == ran for _, _, launched, ran in alone)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(client, range(4)))


def test_unawaited_error_is_received(daemon: DaemonProcess) -> None:
    with daemon.connect() as node:
        gpu = node.device(0)
        x = gpu.zeros(4, np.int32)
        common(gpu, "add_one")((1,), (4000,), (x, np.int32(4)))
        with pytest.raises(hearth.LaunchError, match="4000"):
            gpu.synchronize()
        assert channel(gpu)
        assert x.get().tolist() == [0] * 4


def test_kernel_output_arrives_before_the_answer_of_the_wait(
    daemon: DaemonProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    code = r'extern "C" __global__ void hello(int n) { printf("lane %d\n", n); }'
    with daemon.connect() as node:
        gpu = node.device(0)
        hello = gpu.RawModule(code=code).get_function("hello")
        for number in range(20):
            hello((1,), (1,), (np.int32(number),))
            gpu.synchronize()
            assert channel(gpu)
            assert f"lane {number}\n" in capfd.readouterr().out


# ---- the end of a lane ----


@pytest.mark.parametrize("most", [400, 20_000])
def test_commands_over_lanes_that_are_cut(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """A lane is cut at any byte; each command has run exactly once, and each answer has arrived."""
    program = Program(7, 3000 if most > 1000 else 400)
    with daemon.connect(lanes=False) as node:
        expected = program.run(node.device(0))
    folder = short_folder()
    cutter = LaneCutter(folder, random.Random(most), most)
    opened = lanes.open_lane
    monkeypatch.setattr(
        transport, "open_lane", lambda path, *rest, **more: opened(cutter.stand_before(path), *rest, **more)
    )
    try:
        with daemon.connect() as node:
            gpu = node.device(0)
            read, final, launched, ran = program.run(gpu)
            took = outages(gpu)
    finally:
        cutter.close()
        shutil.rmtree(folder)
    assert launched == ran == expected[2], "each launch ran exactly once"
    assert len(read) == len(expected[0])
    assert all((mine == theirs).all() for mine, theirs in zip(read, expected[0], strict=True))
    assert all((mine == theirs).all() for mine, theirs in zip(final, expected[1], strict=True))
    assert cutter.cuts > 3 and len(took) > 3
    assert statistics.median(took) < 2000  # a stream that is not attached in time is abandoned after 3 s


def test_idle_lane_that_is_cut(daemon: DaemonProcess) -> None:
    with daemon.connect() as node:
        gpu = node.device(0)
        counter = Counter(gpu)
        for number in range(1, 6):
            cut(gpu)
            wait_until(lambda wanted=number: len(outages(gpu)) == wanted, "the resume, without any use")
            counter.check()
            wait_until(lambda: channel(gpu), "another lane")


def test_device_lost_while_a_lane_is_open(lossy: DaemonProcess) -> None:
    with lossy.connect() as node:
        gpu = node.device(0)
        for _ in range(4):
            saxpy_works(gpu)
            assert channel(gpu)
            x = gpu.zeros(4, np.int32)
            with gated(gpu) as gate:
                gate.hold(x)
                os.kill(lossy.device_pid(0), signal.SIGKILL)
                with pytest.raises(hearth.DeviceLostError):
                    gpu.synchronize()
            with pytest.raises(hearth.BufferLostError):
                x.get()
            wait_until(lambda: saxpy_works(gpu) is None, "the device's return")


def test_kernel_fault_while_a_lane_is_open(lossy: DaemonProcess) -> None:
    """The client gets the error from the front, which knows how the process ended."""
    code = 'extern "C" __global__ void crash(int* x) { *(volatile int*)0 = 1; }'
    with lossy.connect() as node:
        gpu = node.device(0)
        saxpy_works(gpu)
        assert channel(gpu)
        gpu.RawModule(code=code).get_function("crash")((1,), (1,), (gpu.zeros(1, np.int32),))
        with pytest.raises(hearth.DeviceLostError):
            gpu.synchronize()
        wait_until(lambda: saxpy_works(gpu) is None, "the device's return")


def test_clients_with_a_lane_are_notified_of_a_drain(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(drain_timeout="20s")
    with daemon.connect() as node:
        gpu = node.device(0)
        counter = Counter(gpu)
        assert channel(gpu)
        daemon.process.send_signal(signal.SIGTERM)
        wait_until(lambda: connection_of(gpu).attachment().session.draining, "the news")
        counter.check()
        assert not channel(gpu)
    assert daemon.process.wait(20) == 0


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


CLIENT = """
import sys, numpy as np, hearth
from hearth.transport import lane
lane.open_lane.__defaults__ = (60.0,)  # not without one because the machine is busy
with hearth.connect(sys.argv[1]) as node:
    gpu = node.device(0)
    add = gpu.RawModule(code=sys.stdin.read()).get_function("add_one")
    x = gpu.zeros(1, np.int32)
    gpu.synchronize()
    print("ready", flush=True)
    while True:
        add((1,), (1,), (x, np.int32(1)))
"""


def test_a_client_that_is_killed_leaves_nothing(start_daemon: StartDaemon) -> None:
    # A lease that a running client keeps even if a busy machine does not schedule it for seconds.
    daemon = start_daemon(sessions={"lease": "6s"})
    with daemon.connect() as node:
        saxpy_works(node.device(0))  # the runtime's file stays open afterwards
    wait_until(lambda: not daemon.status()["sessions"], "the session's end", 30)
    before = descriptors(daemon.device_pid(0))
    for _ in range(3):
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, daemon.unix], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment(),
        )  # fmt: skip
        with client:
            assert client.stdin is not None and client.stdout is not None
            client.stdin.write(COMMON)
            client.stdin.close()
            assert client.stdout.readline() == "ready\n"
            assert "hearth_lanes 1.0" in daemon.get("/metrics").body
            assert descriptors(daemon.device_pid(0)) > before
            client.kill()
        wait_until(lambda: "hearth_lanes 0.0" in daemon.get("/metrics").body, "the lane's end")
    wait_until(lambda: not daemon.status()["sessions"], "the sessions' end", 30)
    wait_until(lambda: descriptors(daemon.device_pid(0)) <= before, "the close of the lanes' descriptors")
    with daemon.connect() as node:
        saxpy_works(node.device(0))


@pytest.fixture
def forked(daemon: DaemonProcess) -> Iterator[hearth.Node]:
    with daemon.connect() as node:
        saxpy_works(node.device(0))
        yield node


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_leaves_the_parents_lane_alone(forked: hearth.Node) -> None:
    gpu = forked.device(0)
    counter = Counter(gpu)
    child = os.fork()
    if not child:
        try:
            gpu.synchronize()
        except hearth.ClosedError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    counter.check()
    assert channel(gpu) and not outages(gpu)
