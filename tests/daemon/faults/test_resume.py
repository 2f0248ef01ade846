"""Connections that are cut at any byte: every command runs exactly once, and clients notice only a delay."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hearth
from hearth.transfer import grpc_stream
from hearth.transport import grpc as transport
from hearth.transport.base import unreached
from hearth_proto.v1 import device_pb2
from tests.support.client.internals import connection_of, session_of
from tests.support.daemon.cutter import Budget, Cutter, random_cuts
from tests.support.daemon.harness import DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.kernels import common, gated, saxpy_works
from tests.support.daemon.resumed_programs import Counter, Program, outages
from tests.support.timing import LATE

SMALL = {"max_inline_bytes": "32KiB", "max_chunk_bytes": "16KiB"}
"""Small limits, so that transfers have many chunks with few bytes."""


def connect_without_stripes(target: str) -> hearth.Node:
    node = hearth.connect(target)
    session_of(node).transport.stripes = 0
    return node


@pytest.mark.parametrize("seed", [1])
def test_ten_thousand_commands_over_connections_that_are_cut(
    start_daemon: StartDaemon, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = start_daemon(limits=SMALL)
    program = Program(seed, 10_000)
    with daemon.connect() as node:
        expected = program.run(node.device(0))
    assert expected[2] == expected[3]
    with Cutter(daemon.unix, random_cuts(seed, 25_000)) as cutter, hearth.connect(cutter.address) as node:
        gpu = node.device(0)
        began = time.monotonic()
        read, final, launched, ran = program.run(gpu)
        seconds = time.monotonic() - began
        took = sorted(outages(gpu))
    assert launched == ran == expected[2], "each launch ran exactly once"
    assert len(read) == len(expected[0])
    assert all((mine == theirs).all() for mine, theirs in zip(read, expected[0], strict=True))
    assert all((mine == theirs).all() for mine, theirs in zip(final, expected[1], strict=True))
    assert cutter.cuts > 30 and len(took) > 10
    median, p99 = statistics.median(took), took[min(len(took) - 1, round(0.99 * len(took)))]
    with capsys.disabled():
        print(
            f"\nresume: {program.commands} commands, {cutter.cuts} connections cut, {len(took)} resumes of Execute: "
            f"median {median:.1f} ms, p99 {p99:.1f} ms; {seconds:.1f} s, {cutter.up + cutter.down >> 20} MiB"
        )
    assert median < 1000


# ---- single cuts ----


@pytest.fixture
def cutter(daemon: DaemonProcess) -> Iterator[Cutter]:
    with Cutter(daemon.unix) as proxy:
        yield proxy


def test_idle_connection_that_is_cut(cutter: Cutter) -> None:
    with hearth.connect(cutter.address) as node:
        counter = Counter(node.device(0))
        for number in range(1, 6):
            cutter.cut(reset=number % 2 == 0)
            wait_until(lambda wanted=number: len(outages(counter.gpu)) == wanted, "the resume, without any use")
            counter.check()
        assert node.describe().devices and node.session_id in {entry.session_id for entry in node.sessions()}


@pytest.mark.parametrize("direction", ["up", "down"])
def test_connection_cut_at_every_byte_of_the_responses(cutter: Cutter, direction: str) -> None:
    """The next connection is cut as well: in its handshake, in the Attach or its answer, in the first batch, or in the
    first result."""
    with hearth.connect(cutter.address) as node:
        counter = Counter(node.device(0))
        for position in itertools.chain(range(0, 400, 9), range(400, 1200, 41)):
            following = cutter.connections
            cutter.plan = lambda number, first=following, most=position: (
                Budget(**{direction: most}) if number == first else Budget()
            )
            counter.launch(2)
            cutter.cut()
            counter.check()
        cutter.plan = lambda number: Budget()
        assert cutter.cuts > 90
        counter.check()


def test_a_first_attach_that_is_cut(cutter: Cutter) -> None:
    for position in range(0, 1500, 60):
        with hearth.connect(cutter.address) as node:
            following = cutter.connections
            cutter.plan = lambda number, first=following, most=position: (
                Budget(down=most) if number == first else Budget()
            )
            cutter.cut()
            node.device(0).zeros(3).get()
            cutter.plan = lambda number: Budget()


def test_opening_a_session_over_connections_that_are_cut(cutter: Cutter) -> None:
    for position in range(0, 1000, 50):
        first = cutter.connections
        cutter.plan = lambda number, first=first, most=position: Budget(down=most) if number == first else Budget()
        with hearth.connect(cutter.address) as node:
            assert node.describe().devices


def test_silent_connection_is_replaced(cutter: Cutter, monkeypatch: pytest.MonkeyPatch) -> None:
    """No peer closes the connection: the client detects the loss by its pings, and resumes the session. The earlier
    stream is still open for the daemon."""
    times = {"grpc.keepalive_time_ms": 200, "grpc.keepalive_timeout_ms": 200, "grpc.http2.ping_timeout_ms": 200}
    options = dict(transport._OPTIONS) | times
    monkeypatch.setattr(transport, "_OPTIONS", tuple(options.items()))
    with hearth.connect(cutter.address) as node:
        counter = Counter(node.device(0))
        for _ in range(2):
            before = len(outages(counter.gpu))  # a busy machine may answer a ping too late
            cutter.stall()
            counter.launch(100)
            counter.check()
            assert len(outages(counter.gpu)) > before


@pytest.mark.usefixtures("pair")
def test_two_devices_and_a_collective_across_cuts(cutter: Cutter) -> None:
    with hearth.connect(cutter.address) as node:
        devices = node.devices[:2]
        counters = [Counter(device) for device in devices]
        group = hearth.Group(devices)
        arrays = [device.full(1000, rank + 1, np.int64) for rank, device in enumerate(devices)]
        for number in range(1, 9):
            group.all_reduce(arrays)
            if number % 2:
                cutter.cut()
            for counter in counters:
                counter.launch(10)
        for counter, array in zip(counters, arrays, strict=True):
            counter.check()
            assert (array.get() == 3 * 2**7).all(), "each sum was taken once"
            assert outages(counter.gpu)


def test_large_transfers_resume_where_they_stopped(cutter: Cutter) -> None:
    """Several concurrent transfers, in both directions, with the daemon's own limits."""
    cutter.plan = random_cuts(5, 4 << 20)
    hosts = [np.frombuffer(np.random.default_rng(number).bytes((20 << 20) + number), np.uint8) for number in range(3)]
    results: dict[int, bool] = {}
    reports: list[int] = []
    with hearth.connect(cutter.address, lanes=False) as node:  # stripes would bypass the cutter
        gpu = node.device(0)

        def there_and_back(number: int) -> None:
            progress = (lambda done, total: reports.append(done)) if number == 0 else None
            x = gpu.asarray(hosts[number], progress=progress)
            results[number] = bool((x.get() == hosts[number]).all())

        threads = [threading.Thread(target=there_and_back, args=(number,)) for number in range(len(hosts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert results == dict.fromkeys(range(len(hosts)), True)
    assert cutter.cuts > 3
    assert reports == sorted(reports) and reports[-1] == hosts[0].nbytes


def test_a_dispatch_with_large_inputs_and_outputs_across_cuts(cutter: Cutter) -> None:
    source = """extern "C" __global__ void identity(const int* x, int* y, int n) {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[i]; }"""
    host = np.random.default_rng(0).integers(0, 1 << 30, 3 << 20, np.int32)
    with hearth.connect(cutter.address, lanes=False) as node:  # everything over the connection that is cut: no stripes
        gpu = node.device(0)
        identity = gpu.RawModule(code=source).get_function("identity")
        gpu.synchronize()
        cutter.plan = random_cuts(6, 4 << 20)
        cutter.cut()
        for _ in range(3):
            out = hearth.Out(host.shape, host.dtype)
            (result,) = gpu.dispatch(identity, (64,), (64,), [host, out, np.int32(host.size)])
            np.testing.assert_array_equal(result, host)
        assert cutter.cuts > 1


def test_kernel_output_and_errors_arrive_exactly_once(cutter: Cutter) -> None:
    """Events and errors of one-way commands, over connections that are cut repeatedly."""
    code = r"""extern "C" __global__ void say(int n) { printf("%d.\n", n); }"""
    texts: list[str] = []
    with hearth.connect(cutter.address) as node:
        gpu = node.device(0)
        gpu.on_output(texts.append)
        say = gpu.RawModule(code=code).get_function("say")
        say((1,), (1,), (np.int32(-1),))
        gpu.synchronize()
        cutter.plan = random_cuts(8, 10_000)
        cutter.cut()
        failures: list[hearth.Failure] = []
        for number in range(150):
            say((1,), (1,), (np.int32(number),))
            if number % 10 == 0:
                say((1,), (1 << 20,), (np.int32(number),))
            if number % 3 == 2:
                try:
                    gpu.synchronize()
                except hearth.LaunchError as error:
                    failures += error.failures
        assert [failure.reason for failure in failures] == ["LAUNCH_INVALID"] * 15
        assert "".join(texts).split() == [f"{number}." for number in range(-1, 150)]
        assert len(outages(gpu)) > 3


def test_timeout_during_an_outage(cutter: Cutter) -> None:
    with hearth.connect(cutter.address) as node:
        counter = Counter(node.device(0))
        cutter.refuse()
        cutter.cut()
        counter.launch(5)
        began = time.monotonic()
        for wait in (lambda: counter.gpu.synchronize(timeout=0.1), lambda: counter.x.get(timeout=0.1)):
            with pytest.raises(hearth.TimeoutError):
                wait()
        assert time.monotonic() - began < LATE
        cutter.refuse(False)
        counter.check()


# ---- late messages of an older connection ----


@pytest.mark.parametrize("times", [1, 3])
def test_late_attach(daemon: DaemonProcess, times: int) -> None:
    """An attach that the client abandoned for another stream, and that the daemon receives after the newer one,
    displaces the newer stream; the client continues on a third."""
    with hearth.connect(daemon.grpc) as node:
        counter = Counter(node.device(0))
        attachment = connection_of(counter.gpu).attachment()
        session = attachment.session
        for number in range(1, times + 1):
            attach = device_pb2.Attach(
                session_token=connection_of(counter.gpu).token, resumable=True, resume=True,
                generation=session.generation, last_seq_acked=session.acked, received=session.receipts.responses,
            )  # fmt: skip
            late = device_pb2.ExecuteRequest(attach=attach).SerializeToString()
            with contextlib.suppress(hearth.HearthError):  # the late stream is displaced too
                list(session_of(node).transport.execute(iter([late]), lambda _: False))
            counter.check()
            assert len(outages(counter.gpu)) == number and connection_of(counter.gpu).attachment() is attachment


@pytest.mark.parametrize("way", ["upload", "download"])
def test_late_stream_of_a_transfer(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """The transfer continues on a third stream."""
    host = np.random.default_rng(1).integers(0, 256, 20 << 20, np.uint8)
    late: list[Any] = []
    older = transport.GrpcTransport(daemon.grpc, loopback=True)
    with connect_without_stripes(daemon.grpc) as node:
        live = session_of(node).transport
        opened, opened_late = getattr(live, way), getattr(older, way)

        def open_twice(requests: Any, *more: Any) -> Any:
            messages = list(requests) if way == "upload" else []  # both streams need the messages
            wanted = opened(iter(messages) if messages else requests, *more)
            if not late:
                late.append(opened_late(iter(messages) if messages else requests, *more))
                with contextlib.suppress(hearth.HearthError):  # if the late stream was first
                    late.append(late[0].result() if way == "upload" else next(iter(late[0])))
            return wanted

        monkeypatch.setattr(live, way, open_twice)
        x = node.device(0).asarray(host)
        assert (x.get() == host).all()
        late[0].cancel()
        older.close()


# ---- abandoned transfers ----


@pytest.mark.parametrize("way", ["down", "up", "dispatch"])
def test_transfer_cancelled_during_outage_is_reported_to_daemon(cutter: Cutter, way: str) -> None:
    """The daemon still receives the message: otherwise its command, and all commands after it, would wait for the bytes
    forever."""
    host = np.arange(3 << 20, dtype=np.uint8)
    with hearth.connect(cutter.address, lanes=False) as node:
        gpu = node.device(0)
        counter, x = Counter(gpu), gpu.asarray(host)
        add = common(gpu, "add_one")
        gpu.synchronize()
        cutter.refuse()
        cutter.cut()
        if way == "down":
            with pytest.raises(hearth.TimeoutError):
                x.get(timeout=0.1)
        else:
            main = threading.main_thread().ident
            assert main is not None
            timer = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                timer.start()
                if way == "up":
                    x.set(host[::-1].copy())
                else:
                    gpu.dispatch(add, 1, 1, ins=[host], outs=[], scalars=[np.int32(0)])
            timer.join()
        time.sleep(0.2)  # long enough to lose a message that is sent only once
        cutter.refuse(False)
        gpu.synchronize(timeout=60)
        counter.check()
        assert way == "up" or (x.get() == host).all()


def test_a_timeout_between_the_last_byte_and_the_answer(cutter: Cutter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of a large read have arrived, and the connection that would deliver its answer breaks."""
    with hearth.connect(cutter.address, lanes=False) as node:
        counter = Counter(node.device(0))
        x = counter.gpu.asarray(np.arange(3 << 20, dtype=np.uint8))
        attachment = connection_of(counter.gpu).attachment()
        deliver, result, came = attachment.deliver, grpc_stream.GrpcDownload.result, threading.Event()

        def download(*arguments: Any) -> int:
            size = result(*arguments)
            came.set()
            return size

        def deaf(response: device_pb2.ExecuteResponse) -> hearth.HearthError | None:
            if response.HasField("result") and response.result.HasField("read"):
                assert came.wait(30)
                cutter.refuse()
                cutter.cut()
                raise unreached("there", "a test")
            return deliver(response)

        monkeypatch.setattr(grpc_stream.GrpcDownload, "result", download)
        monkeypatch.setattr(attachment, "deliver", deaf)
        began = time.monotonic()
        with pytest.raises(hearth.TimeoutError):
            x.get(timeout=2)
        assert time.monotonic() - began < 20
        monkeypatch.undo()
        cutter.refuse(False)
        counter.check()


def test_submission_during_outage_waits_for_window(cutter: Cutter) -> None:
    with hearth.connect(cutter.address) as node:
        counter = Counter(node.device(0))
        cutter.refuse()
        cutter.cut()
        thread = threading.Thread(target=counter.launch, args=(30_000,))
        thread.start()
        session = connection_of(counter.gpu).attachment().session
        wait_until(lambda: session.queue.full, "the queue to be full")
        assert thread.is_alive()
        cutter.refuse(False)
        thread.join(60)
        counter.check()


# ---- ends of sessions ----


def test_device_lost_during_an_outage(lossy: DaemonProcess) -> None:
    first = lossy.generation()
    with Cutter(lossy.unix) as cutter, hearth.connect(cutter.address) as node:
        gpu = node.device(0)
        counter = Counter(gpu)
        counter.launch(10)
        cutter.refuse()
        cutter.cut()
        os.kill(lossy.device_pid(), signal.SIGKILL)
        wait_until(lambda: lossy.generation() > first, "another process")
        cutter.refuse(False)
        with pytest.raises(hearth.DeviceLostError, match="SIGKILL"):
            gpu.synchronize()
        gpu.synchronize()  # the error is reported only once
        with pytest.raises(hearth.BufferLostError):
            counter.x.get()
        saxpy_works(gpu)
        cutter.cut()
        saxpy_works(gpu)


def test_a_device_that_dies_as_the_connection_is_cut(lossy: DaemonProcess) -> None:
    with Cutter(lossy.unix, random_cuts(3, 30_000)) as cutter, hearth.connect(cutter.address) as node:
        gpu = node.device(0)
        first = lossy.generation()
        for generation in range(first, first + 3):
            wait_until(lambda wanted=generation: lossy.generation() == wanted)
            wait_until(lambda: gpu.state == "serving")
            with pytest.raises((hearth.DeviceLostError, hearth.BufferLostError)):
                counter = Counter(gpu)
                while True:
                    counter.launch(20)
                    if gpu.generation == generation and random.random() < 0.3:
                        os.kill(lossy.device_pid(), signal.SIGKILL)
                    gpu.synchronize()
            wait_until(lambda wanted=generation: lossy.generation() > wanted)
        with contextlib.suppress(hearth.DeviceLostError):
            gpu.synchronize()
        saxpy_works(gpu)


def test_outage_longer_than_the_lease(brief: DaemonProcess) -> None:
    with Cutter(brief.unix) as cutter, hearth.connect(cutter.address) as node:
        gpu = node.device(0)
        counter = Counter(gpu)
        big = gpu.zeros(8 << 20, np.uint8)
        gpu.synchronize()
        assert brief.gauge("sessions") == 1
        time.sleep(1.5)
        counter.check()
        began = time.monotonic()
        cutter.refuse()
        cutter.cut()
        counter.launch()
        with pytest.raises(hearth.ConnectError, match="was lost and could not be restored within") as caught:
            gpu.synchronize()
        assert 0.9 < time.monotonic() - began < LATE and caught.value.fix and caught.value.details["lease_s"] == "1"
        wait_until(lambda: brief.gauge("sessions") == 0 and brief.gauge("memory_in_use_bytes") == 0)
        cutter.refuse(False)
        with pytest.raises(hearth.SessionExpiredError):
            gpu.synchronize()
        del big


@pytest.mark.parametrize("where", ["kernel", "upload"])
def test_session_expires_despite_pending_upload_or_kernel(
    brief: DaemonProcess, start_daemon: StartDaemon, where: str
) -> None:
    """A session that expires during an upload or while its kernel runs is freed nevertheless."""
    daemon, expires = brief, _expires_behind_a_kernel if where == "kernel" else _expires_during_an_upload
    if not expires(daemon):
        daemon = start_daemon(sessions={"lease": "10s"})
        assert expires(daemon), "the session expired while it was connected"


def _is_freed(daemon: DaemonProcess) -> None:
    wait_until(lambda: daemon.gauge("sessions") == 0 and daemon.gauge("memory_in_use_bytes") == 0)
    assert daemon.gauge("staging_bytes") == 0


def _expires_behind_a_kernel(daemon: DaemonProcess) -> bool:
    with Cutter(daemon.unix) as cutter, hearth.connect(cutter.address, lanes=False) as node:
        gpu = node.device(0)
        x = gpu.zeros(64 << 20, np.uint8)
        gpu.synchronize()
        common(gpu, "spin")((1,), (1,), (np.int64(1_500_000_000),))
        common(gpu, "spin")((1,), (1,), (np.int64(1),))
        wait_until(lambda: connection_of(gpu).attachment().session.idle)
        cutter.refuse()
        cutter.cut()
        _is_freed(daemon)
        del x
    return True


def _expires_during_an_upload(daemon: DaemonProcess) -> bool:
    """Returns False if the session expired before the upload had been cut: resuming took longer than the lease, because
    the machine is busy."""
    with Cutter(daemon.unix) as cutter, hearth.connect(cutter.address, lanes=False) as node:
        gpu = node.device(0)
        x = gpu.zeros(64 << 20, np.uint8)
        gpu.synchronize()
        cutter.plan = lambda number: Budget(up=20 << 20)
        cutter.cut()
        try:
            gpu.synchronize()
        except hearth.HearthError:
            return False
        uploading = threading.Thread(target=_upload, args=(x,))
        uploading.start()
        wait_until(lambda: cutter.up > 20 << 20 or not uploading.is_alive(), "the cut")
        if not uploading.is_alive():
            return False
        cutter.refuse()
        cutter.cut()
        uploading.join(60)
        assert not uploading.is_alive()
        _is_freed(daemon)
    return True


def _upload(x: hearth.DeviceArray) -> None:
    with contextlib.suppress(hearth.HearthError):
        x.set(np.ones(x.shape, x.dtype))


def test_closing_a_broken_connection_is_quick(daemon: DaemonProcess) -> None:
    with Cutter(daemon.unix) as cutter:
        node = hearth.connect(cutter.address)
        counter = Counter(node.device(0))
        cutter.refuse()
        cutter.cut()
        counter.launch(10)
        began = time.monotonic()
        node.close()
        assert time.monotonic() - began < LATE
        with pytest.raises(hearth.ClosedError):
            counter.launch()


def test_close_after_a_cut_still_sends_queued_commands(cutter: Cutter, daemon: DaemonProcess) -> None:
    launches = daemon.counter("kernel_launches", 0)
    node = hearth.connect(cutter.address)
    counter = Counter(node.device(0))
    with gated(node.device(0)):
        pass
    counter.launch(1000)
    cutter.cut()
    node.close()
    wait_until(lambda: daemon.counter("kernel_launches", 0) >= launches + 1003, "all launches")
