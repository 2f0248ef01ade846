"""Bulk data over TCP in stripes: exact results, recovery from every break, and no leftovers."""

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

import numpy as np
import pytest

import hearth
from hearth.transfer.stripe_pool import Stripes
from hearth.transfer.striped_download import StripedDownload
from hearth.transfer.striped_upload import StripedUpload
from hearth.transport import grpc as transport
from hearth.transport.stripe import Stripe, StripeTiming
from hearth_proto.v1 import device_pb2
from tests.support.client.internals import connection_of, session_of
from tests.support.daemon.cutter import Budget, Cutter, random_cuts
from tests.support.daemon.harness import DaemonProcess, StartDaemon, environment, wait_until
from tests.support.daemon.kernels import saxpy_works
from tests.support.daemon.secured import SecuredDaemon
from tests.support.timing import LATE

MIB = 1 << 20
SIZES = (8 * MIB, 8 * MIB + 1, 13 * MIB - 3, 33 * MIB + 12345)
STRIPES = 4


def values(size: int, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def stripes_of(gpu: hearth.Device) -> Stripes:
    assert Stripes in connection_of(gpu).parts, "no transfer asked for stripes"
    return connection_of(gpu).part(Stripes)


def live(gpu: hearth.Device) -> int:
    return stripes_of(gpu).inspect().live


def prepare(gpu: hearth.Device, **more: Any) -> None:
    """Gives the device's connection, before its first large transfer, a pool of stripes with other times."""
    connection = connection_of(gpu)
    assert Stripes not in connection.parts
    connection.parts[Stripes] = Stripes(connection, **more)


def retrying(gpu: hearth.Device) -> None:
    """Makes the device's connection request stripes at each large transfer, even if few could be opened the last
    time."""
    prepare(gpu, again=0.0)


def connect(target: str, count: int | None = STRIPES, **options: Any) -> hearth.Node:
    """Connects a client that uses `count` stripes, whatever the number of cores."""
    node = hearth.connect(target, **options)
    session_of(node).transport.stripes = count
    return node


def there_and_back(gpu: hearth.Device, size: int, seed: int = 1) -> None:
    host = values(size, seed)
    x = gpu.asarray(host)
    out = np.zeros_like(host)
    x.get(out=out)
    assert (out == host).all()


def settled(daemon: DaemonProcess, stripes: int = 0) -> None:
    """Waits until all staging memory is returned, and only `stripes` stripes are open."""
    wait_until(lambda: daemon.gauge("stripes") == stripes, f"{stripes} stripes in the device process")
    wait_until(lambda: daemon.gauge("staging_bytes") == 0, "all staging memory given back")


def threads_of(pid: int) -> list[str]:
    names = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except OSError:
            continue
    return names


@pytest.fixture
def gpu(daemon: DaemonProcess) -> Iterator[hearth.Device]:
    with connect(daemon.grpc) as node:
        yield node.device(0)


@pytest.fixture
def by_way_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[hearth.Node, Cutter], None]:
    """Returns a function that routes a client's stripes, and nothing else, through a cutter."""

    def divert(node: hearth.Node, cutter: Cutter) -> None:
        transport: Any = session_of(node).transport
        ask = transport.open_bulk

        def open_bulk(request: device_pb2.OpenBulkRequest) -> device_pb2.OpenBulkResponse:
            answer = ask(request)
            answer.host, port = cutter.address.rsplit(":", 1)
            answer.port = int(port)
            return answer

        monkeypatch.setattr(transport, "open_bulk", open_bulk)

    return divert


# ---- when all is well ----


@pytest.mark.parametrize("size", SIZES)
def test_bit_for_bit(gpu: hearth.Device, daemon: DaemonProcess, size: int) -> None:
    there_and_back(gpu, size)
    assert live(gpu) > 0
    settled(daemon, live(gpu))


def test_bytes_are_sent_over_stripes(gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are sent over stripes, not over gRPC."""

    def never(*_: Any) -> None:
        raise AssertionError("a stream of Upload or Download was opened")

    monkeypatch.setattr("hearth.transfer.grpc_stream.GrpcUpload.__init__", never)
    monkeypatch.setattr("hearth.transfer.grpc_stream.GrpcDownload.__init__", never)
    there_and_back(gpu, 20 * MIB + 7)
    assert live(gpu) == STRIPES


def test_rows_and_views(gpu: hearth.Device) -> None:
    """Copies strided parts of an array."""
    host = values(6000 * 4000).reshape(6000, 4000)
    x = gpu.asarray(host)
    assert (x[:, 100:3100].get() == host[:, 100:3100]).all()
    part = values(6000 * 3000, seed=2).reshape(6000, 3000)
    x[:, 500:3500].set(part)
    host[:, 500:3500] = part
    assert (x.get() == host).all()


def test_progress_is_reported(gpu: hearth.Device) -> None:
    told: list[tuple[int, int]] = []
    host = values(20 * MIB)
    x = gpu.asarray(host, progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told) and told[-1] == (host.nbytes, host.nbytes)
    told.clear()
    assert (x.get(progress=lambda done, total: told.append((done, total))) == host).all()
    assert told == sorted(told) and told[-1] == (host.nbytes, host.nbytes)


MIX = r"""
extern "C" __global__ void mix(const unsigned char* a, const unsigned char* b, unsigned char* sum, unsigned char* both,
                               int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { sum[i] = a[i] + b[i]; both[i] = a[i] ^ b[i]; }
}
"""


def dispatched(gpu: hearth.Device, size: int, seed: int = 1) -> None:
    """Runs a dispatch with two large inputs and outputs."""
    mix = gpu.RawKernel(MIX, "mix")
    a, b = values(size, seed), values(size, seed + 1)
    outs = [((size,), np.uint8)] * 2
    total, both = gpu.dispatch(mix, -(-size // 256), 256, ins=[a, b], outs=outs, scalars=[np.int32(size)])
    assert (total == a + b).all() and (both == a ^ b).all()


def test_a_dispatch_goes_over_them(gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("a stream of Upload or Download was opened")

    monkeypatch.setattr("hearth.transfer.grpc_stream.GrpcUpload.__init__", never)
    monkeypatch.setattr("hearth.transfer.grpc_stream.GrpcDownload.__init__", never)
    dispatched(gpu, 9 * MIB + 5)
    mix, a = gpu.RawKernel(MIX, "mix"), values(9 * MIB)
    how: dict[str, Any] = {"ins": [a, a], "outs": [(a.shape, np.uint8)] * 2, "scalars": [np.int32(1)]}
    pending = [gpu.dispatch_async(mix, 1, 1, **how) for _ in range(3)]
    for each in pending:
        total, both = each.result(60)
        assert int(total[0]) == 2 * int(a[0]) % 256 and not total[1:].any() and not both.any()
    with pytest.raises(hearth.LaunchError):
        gpu.dispatch(mix, 1, 5000, **how)
    gpu.synchronize()


COPIES = r"""
extern "C" __global__ void copies(const unsigned char* a, unsigned char* x, unsigned char* y, unsigned char* z, int n,
                                  int m, int k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = a[i] + 1;
    if (i < m) y[i] = a[i] + 2;
    if (i < k) z[i] = a[i] + 3;
}
"""


def test_a_dispatch_whose_outputs_go_by_different_ways(gpu: hearth.Device) -> None:
    """Over stripes, by a Download stream, and inside the answer, in every order of the outputs."""
    copies, a = gpu.RawKernel(COPIES, "copies"), values(10 * MIB)
    for sizes in itertools.permutations((10 * MIB, 3 * MIB, 1000)):
        pending = gpu.dispatch_async(
            copies, a.size // 256, 256, ins=[a], outs=[(size, np.uint8) for size in sizes],
            scalars=[np.int32(size) for size in sizes],
        )  # fmt: skip
        for more, out in enumerate(pending.result(60), 1):
            assert (out == a[: out.size] + more).all()


def test_the_order_of_the_stream_holds(gpu: hearth.Device) -> None:
    """Many writes to one buffer, each with a read behind it."""
    x = gpu.empty(10 * MIB, np.uint8)
    for seed in range(6):
        host = values(10 * MIB, seed)
        x.set(host)
        y = x.copy()
        x.fill(seed)
        assert (y.get() == host).all() and (x.get() == seed).all()


def test_many_at_once(daemon: DaemonProcess) -> None:
    """Threads of one client, on separate streams and on the same one, in both directions."""
    failures: list[BaseException] = []
    with connect(daemon.grpc) as node:
        gpu = node.device(0)

        def work(seed: int) -> None:
            try:
                for turn in range(3):
                    if seed % 2:
                        with gpu.stream():
                            there_and_back(gpu, 8 * MIB + 1000 * seed + turn, seed)
                    else:
                        there_and_back(gpu, 8 * MIB + 1000 * seed + turn, seed)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        assert not failures and not any(thread.is_alive() for thread in threads), failures
        assert live(gpu) > 0
    settled(daemon)


def test_a_slow_reader_does_not_stop_others(gpu: hearth.Device) -> None:
    x = gpu.asarray(values(24 * MIB))
    go_on = threading.Event()
    told = threading.Event()

    def wait(_done: int, _total: int) -> None:
        told.set()
        assert go_on.wait(60)

    slow = threading.Thread(target=lambda: x.get(progress=wait))
    slow.start()
    assert told.wait(30)
    there_and_back(gpu, 16 * MIB, 3)
    go_on.set()
    slow.join(60)
    assert not slow.is_alive()


def test_no_stripes_without_lanes_or_over_unix_socket(daemon: DaemonProcess) -> None:
    with hearth.connect(daemon.grpc, lanes=False) as node:
        there_and_back(node.device(0), 9 * MIB)
        assert Stripes not in connection_of(node.device(0)).parts
    with hearth.connect(daemon.unix) as node:
        there_and_back(node.device(0), 9 * MIB)
        assert Stripes not in connection_of(node.device(0)).parts


def test_a_daemon_without_them(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(listen={"lanes": ""})
    with connect(daemon.grpc) as node:
        for _ in range(2):
            there_and_back(node.device(0), 9 * MIB)
        assert stripes_of(node.device(0)).inspect().refused and live(node.device(0)) == 0


def test_a_download_in_time_or_not_at_all(lossy: DaemonProcess, by_way_of: Any) -> None:
    with connect(lossy.grpc) as node, Cutter(lossy.lanes) as cutter:
        by_way_of(node, cutter)
        gpu = node.device(0)
        x = gpu.asarray(values(16 * MIB))
        cutter.stall()
        began = time.monotonic()
        with pytest.raises(hearth.TimeoutError):
            x.get(timeout=0.5)
        assert time.monotonic() - began < LATE
        cutter.cut()
        with contextlib.suppress(hearth.TransferError):  # that read's own answer, which was not awaited
            gpu.synchronize()
        with contextlib.suppress(hearth.TransferError):
            x.get()
        there_and_back(gpu, 9 * MIB)


def test_they_end_with_the_session(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    pid = daemon.device_pid()
    before = len(threads_of(pid))
    with connect(daemon.grpc) as node:
        there_and_back(node.device(0), 16 * MIB)
        assert len(threads_of(pid)) > before
    settled(daemon)
    wait_until(lambda: len(threads_of(pid)) <= before + 1, "the stripes' threads to end")
    assert not [each for each in threading.enumerate() if each.name.startswith("hearth-stripe")]


def test_idle_stripes_are_closed(lossy: DaemonProcess) -> None:
    with connect(lossy.grpc) as node:
        gpu = node.device(0)
        prepare(gpu, timing=StripeTiming(stall=0.2, idle=0.3))
        for _ in range(2):
            there_and_back(gpu, 20 * MIB)
            assert live(gpu) > 0
            wait_until(lambda: live(gpu) == 0, "the stripes to be closed")
            settled(lossy)


# ---- connections that break ----


def test_the_command_stream_breaks_beside_them(lossy: DaemonProcess) -> None:
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

        place, taken, placed = StripedDownload.place, StripedUpload.taken, StripedDownload.placed

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
            monkeypatch.setattr(StripedUpload, "taken", taking)
            x.set(host[::-1].copy())
            assert (x.get() == host[::-1]).all()
        else:
            name = "place" if way == "down" else "placed"
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


def test_one_of_them_breaks(lossy: DaemonProcess, by_way_of: Any) -> None:
    """The other stripes take over its chunks."""

    def plan(number: int) -> Budget:
        return Budget(up=3 * MIB) if number == 1 else Budget()

    with connect(lossy.grpc) as node, Cutter(lossy.lanes, plan) as cutter:
        by_way_of(node, cutter)
        for _ in range(30):  # where the others are quicker, it has little to carry
            there_and_back(node.device(0), 40 * MIB)
            if cutter.cuts:
                break
        assert cutter.cuts == 1 and cutter.connections == STRIPES + 1  # the download found one missing


def test_all_of_them_break_under_a_dispatch(lossy: DaemonProcess, by_way_of: Any) -> None:
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
    hear, deaf = StripedUpload.taken, list[Stripe]()

    def taken(upload: StripedUpload, stripe: Stripe, offset: int) -> None:
        state = upload.inspect()
        last = state.done == state.chunks - 1 or offset == state.size
        if last and not deaf:
            deaf.append(stripe)
            stripe.close()
        if stripe not in deaf:
            hear(upload, stripe, offset)

    monkeypatch.setattr(StripedUpload, "taken", taken)
    with connect(lossy.grpc, count) as node:
        for _ in range(30):  # what is said on the others may come sooner
            move(node.device(0), 20 * MIB)
            if deaf:
                break
        assert deaf
    settled(lossy)


def test_all_of_them_break_and_come_back(lossy: DaemonProcess, by_way_of: Any) -> None:
    with connect(lossy.grpc) as node, Cutter(lossy.lanes) as cutter:
        by_way_of(node, cutter)
        gpu = node.device(0)
        there_and_back(gpu, 9 * MIB)
        for way in ("up", "down"):
            begin = getattr(cutter, way)
            done = threading.Event()
            worker = threading.Thread(target=lambda done=done: (there_and_back(gpu, 64 * MIB), done.set()))
            worker.start()
            wait_until(lambda way=way, begin=begin: getattr(cutter, way) > begin + 5 * MIB, "bytes on their way")
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
            wait_until(lambda way=way, begin=begin: getattr(cutter, way) > begin + 5 * MIB, "bytes on their way")
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
            wait_until(lambda before=sum_before: cutter.up + cutter.down > before + 8 * MIB, "bytes on their way")
            os.kill(lossy.device_pid(), signal.SIGKILL)
            worker.join(60)
            assert not worker.is_alive()
            assert caught and isinstance(caught[0], hearth.HearthError), caught
            assert caught[0].reason in ("DEVICE_LOST", "BUFFER_LOST"), caught
            wait_until(lambda: lossy.status()["devices"][0]["state"] == "serving", "the next generation")
            with contextlib.suppress(hearth.DeviceLostError):  # of what was under way one way
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
        streams = 3  # of the CPU backend: one a client, kept for the next
        wait_until(lambda: len(threads_of(pid)) <= before + streams, "the stripes' threads to end")
    saxpy_works(hearth.connect(daemon.unix).device(0))


def test_the_daemon_stops_in_the_middle(start_daemon: StartDaemon) -> None:
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


def test_over_tls(secured_daemon: SecuredDaemon) -> None:
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
