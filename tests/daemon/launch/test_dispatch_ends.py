"""Pending dispatches: large ones, dispatches that are never awaited, and every way in which a dispatch can end."""

from __future__ import annotations

import gc
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

import hearth
from hearth import In, InOut, Out
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from tests.support.client.internals import connection_of
from tests.support.daemon.client_process import run_python
from tests.support.daemon.dispatches import KERNELS, SPIN, B, binding, blocks, carried_jobs, value
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.kernels import gated
from tests.support.daemon.raw import TIMEOUT, Raw, refusal_of

LARGE = 2 << 20
"""Number of int32 elements: 8 MiB, much more than is sent inline."""


@pytest.fixture
def identity(gpu: hearth.Device) -> hearth.Function:
    return gpu.RawModule(code=KERNELS).get_function("identity")


def numbers(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(1 << 31), 1 << 31, n, np.int32)


LEASE_S = 30
"""The daemon's lease, in seconds: an earlier test may have killed a client, whose session holds memory until then."""


def settled(daemon: DaemonProcess) -> None:
    """Waits until the device processes have released all memory."""

    def held() -> dict[str, float]:
        sizes = {each: daemon.gauge(each) for each in ("memory_in_use_bytes", "staging_bytes", "segment_bytes")}
        return {each: size for each, size in sizes.items() if size}

    try:
        wait_until(lambda: not held(), "the release of all memory", LEASE_S + 15)
    except AssertionError as error:
        raise AssertionError(f"{error}: {held()}, sessions {daemon.status()['sessions']}") from None


# ---- large ----


def test_large_arrays(gpu: hearth.Device, identity: hearth.Function) -> None:
    for n in (LARGE, (256 << 10) - 1, 256 << 10, (256 << 10) + 1):  # around the limit of inline arrays
        x = numbers(n, n)
        (out,) = gpu.dispatch(identity, blocks(n, 256), 256, ins=[x], outs=[((n,), np.int32)], scalars=[np.int32(n)])
        np.testing.assert_array_equal(out, x)
    assert gpu.memory_usage().bytes_in_use == 0


def test_several_large_and_small_arrays_in_one_dispatch(gpu: hearth.Device) -> None:
    axpy = gpu.RawModule(code=KERNELS).get_function("axpy")
    n = LARGE
    x, y = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
    mine = np.zeros((n - 5, 1), np.float32)[:, 0]
    args: list[Any] = [
        2.0, In(x), InOut(y, range=slice(3, 7)), InOut(y[: n // 2].repeat(2), range=slice(5, None)), np.int32(n)
    ]  # fmt: skip
    small, large = gpu.dispatch(axpy, blocks(n, 256), 256, args, out=[None, mine])
    np.testing.assert_array_equal(small, [1, 1, 1, 1])
    assert large is mine
    np.testing.assert_array_equal(mine, (2 * x + 1)[5:])
    scattered = np.zeros((n, 2), np.float32)
    gpu.dispatch(axpy, blocks(n, 256), 256, [2.0, x, y, Out(n, "f4"), np.int32(n)], out=[scattered[:, 0]])
    np.testing.assert_array_equal(scattered[:, 0], 2 * x + 1)
    assert not scattered[:, 1].any()


def test_many_concurrent_dispatches_of_large_arrays(gpu: hearth.Device, identity: hearth.Function) -> None:
    def one(seed: int) -> bool:
        x = numbers(LARGE // 2 + seed, seed)
        args: list[Any] = [x, Out(x.shape, x.dtype), np.int32(x.size)]
        with gpu.stream():
            pending = gpu.dispatch_async(identity, blocks(x.size, 256), 256, args)
            (out,) = gpu.dispatch(identity, blocks(x.size, 256), 256, args)
            return bool((out == x).all() and (pending.result()[0] == x).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(one, range(8)))
    assert gpu.memory_usage().bytes_in_use == 0


# ---- asynchronous ----


@pytest.mark.parametrize("n", [100, LARGE // 4])
def test_inputs_may_change_after_submission(gpu: hearth.Device, identity: hearth.Function, n: int) -> None:
    x = numbers(n)
    kept = x.copy()
    with gated(gpu) as gate:
        gate.hold()
        pending = gpu.dispatch_async(identity, blocks(n, 256), 256, [x, Out(n, np.int32), np.int32(n)])
        x[:] = 0
        assert pending.state == "pending" and repr(pending) == "<hearth.PendingDispatch pending>"
        gate.open()
        (out,) = pending.result(timeout=30)
    np.testing.assert_array_equal(out, kept)
    assert pending.result()[0] is out and pending.done()


@pytest.mark.parametrize("n", [100, LARGE // 4])
def test_dropped_dispatch_neither_blocks_nor_leaks(
    gpu: hearth.Device, daemon: DaemonProcess, identity: hearth.Function, n: int
) -> None:
    count = gpu.zeros(1, np.int32)
    accumulate = gpu.RawModule(code=KERNELS).get_function("accumulate")
    with gated(gpu) as gate:
        gate.hold()
        for _ in range(5):
            gpu.dispatch_async(accumulate, 1, 1, [np.ones(n, np.int32), count, np.int32(1)])
            gpu.dispatch_async(identity, 1, 1, [np.ones(n, np.int32), Out(n, np.int32), np.int32(1)])
        gc.collect()
        gate.open()
    assert count.item() == 5, "the dropped dispatch was executed"
    gpu.synchronize()
    wait_until(lambda: gpu.memory_usage().bytes_in_use == count.nbytes, "the memory's return")
    attachment = connection_of(gpu).attachment()
    wait_until(lambda: attachment.session.outstanding == 0)
    wait_until(lambda: not [each for each in threading.enumerate() if each.name == "hearth-dispatch"])


def test_a_thousand_outstanding(gpu: hearth.Device, identity: hearth.Function) -> None:
    args = [
        [np.full(16, index, np.int32), Out(16, np.int32, range=slice(index % 16, None)), np.int32(16)]
        for index in range(1000)
    ]
    pending = [gpu.dispatch_async(identity, 1, 16, each) for each in args]
    for index, each in enumerate(pending):
        (out,) = each.result()
        assert out.size == 16 - index % 16 and (out == index).all()


def test_failure_is_raised_by_result(gpu: hearth.Device, identity: hearth.Function) -> None:
    for n in (4, LARGE // 4):
        pending = gpu.dispatch_async(identity, 1, 4096, [np.zeros(n, np.int32), Out(n, np.int32), np.int32(n)])
        wait_until(pending.done, "the refusal")
        assert pending.state == "failed"
        for _ in range(2):
            with pytest.raises(hearth.LaunchError, match="4096"):
                pending.result()
            with pytest.raises(hearth.LaunchError, match="4096"):
                _ = pending.timing
    gpu.synchronize()
    assert gpu.memory_usage().bytes_in_use == 0


# ---- transfers that go wrong, by plain stubs ----


class Bulk:
    """A dispatch of `identity` over 1000 int32 elements with its transfers, step by step."""

    SIZE = 4000

    def __init__(self, raw: Raw) -> None:
        self.raw = raw
        self.function = raw.function(KERNELS, "identity")

    def dispatch(self, **fields: Any) -> Any:
        """Starts a dispatch; returns the pending call."""
        upload, download, output = (fields.pop(name, 0) for name in ("upload", "download", "output"))
        source = binding(B.ROLE_INPUT, size=self.SIZE, upload=upload)
        if not upload:
            source.data = bytes(self.SIZE)
        command = c.Dispatch(
            **{"function": self.function, "grid": c.Dim3(x=4), "block": c.Dim3(x=256), **fields},
            bindings=[source, binding(B.ROLE_OUTPUT, size=output or self.SIZE, download=download), value(int32=1000)],
        )
        request = device_pb2.DispatchRequest(target=self.raw.target(), command=command)
        return self.raw.device.Dispatch.future(request, timeout=TIMEOUT)

    def upload(self, number: int, messages: Iterator[bytes]) -> Any:
        def requests() -> Iterator[device_pb2.UploadRequest]:
            yield device_pb2.UploadRequest(session_token=self.raw.token, transfer=number)
            for data in messages:
                yield device_pb2.UploadRequest(data=data)

        return self.raw.device.Upload.future(requests(), timeout=TIMEOUT)

    def download(self, number: int) -> Any:
        request = device_pb2.DownloadRequest(session_token=self.raw.token, transfer=number)
        return self.raw.device.Download(request, timeout=TIMEOUT)

    def in_use(self) -> int:
        return int(self.raw.call("MemoryUsage", c.MemoryUsage()).bytes_in_use)


@pytest.fixture
def bulk(raw: Raw) -> Iterator[Bulk]:
    made = Bulk(raw)
    yield made
    wait_until(lambda: made.in_use() == 0, "the memory's return")


def failed(call: Any) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        call.result()
    return refusal_of(caught.value)


def test_transfers_by_plain_stubs(bulk: Bulk) -> None:
    data = numbers(1000).tobytes()
    call = bulk.dispatch(upload=5, download=6)
    up = bulk.upload(5, iter([data[:1], data[1:3000], b"", data[3000:]]))
    chunks = list(bulk.download(6))
    assert b"".join(chunk.data for chunk in chunks) == data
    answer = call.result()
    assert list(answer.outputs) == [b""] and list(answer.sizes) == [4000]
    assert up.result().received == 4000
    call = bulk.dispatch(upload=5)  # numbers are used once
    assert failed(call).reason == Reason.TRANSFER_ABORTED


def test_uploads_too_short_too_long_and_broken(bulk: Bulk) -> None:
    for number, sent in enumerate((3999, 4001, 0), 1):
        call = bulk.dispatch(upload=number)
        up = bulk.upload(number, iter([bytes(sent)]))
        refusal = failed(call)
        assert refusal.reason == (Reason.OUT_OF_BOUNDS if sent > 4000 else Reason.TRANSFER_ABORTED)
        assert refusal.details == {"size": "4000", "received": str(sent)}
        up.cancel()
    more: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    call, up = bulk.dispatch(upload=9), bulk.upload(9, iter(more.get, None))
    more.put(bytes(1000))
    wait_until(lambda: bulk.in_use() == 8000, "the dispatch")
    assert not call.done()
    up.cancel()
    assert failed(call).reason == Reason.TRANSFER_ABORTED
    more.put(None)


def test_a_refused_dispatch_ends_its_transfers(bulk: Bulk) -> None:
    more: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    up = bulk.upload(3, iter(more.get, None))
    more.put(bytes(1000))
    assert failed(bulk.dispatch(upload=3, download=4, function=12345)).reason == Reason.INVALID_HANDLE
    assert failed(up).reason == Reason.INVALID_HANDLE, "its upload fails, with the reason"
    more.put(None)
    with pytest.raises(grpc.RpcError):
        next(bulk.download(4))
    call = bulk.dispatch(upload=7, download=7)
    assert failed(call).reason == Reason.HANDLE_IN_USE
    held = bulk.dispatch(upload=20)
    wait_until(lambda: bulk.in_use() == 8000, "the first")
    for again in ({"upload": 20}, {"upload": 21, "download": 20}):
        assert failed(bulk.dispatch(**again)).reason == Reason.HANDLE_IN_USE
    data = numbers(1000).tobytes()
    up = bulk.upload(20, iter([data]))
    assert list(held.result().outputs) == [data], "the transfer still belongs to the first dispatch"
    assert up.result().received == 4000


def test_a_download_that_its_client_closes(bulk: Bulk) -> None:
    call = bulk.dispatch(download=2, output=16 << 20)  # more than is sent before the client has taken any
    down = bulk.download(2)
    assert len(next(down).data) == 1 << 20
    down.cancel()
    assert failed(call).reason == Reason.TRANSFER_ABORTED


def test_a_session_that_is_closed_in_the_middle(daemon: DaemonProcess) -> None:
    with Raw(daemon.unix) as raw:
        bulk = Bulk(raw)
        calls = [bulk.dispatch(upload=1, download=2), bulk.dispatch(upload=3)]
        wait_until(lambda: bulk.in_use() == 8000, "the first; the second waits for it")
    settled(daemon)
    for call in calls:
        with pytest.raises(grpc.RpcError):
            call.result()


# ---- clients that are killed ----

CLIENT = f"""
import sys, hearth, numpy as np
from hearth.transfer import plan
KERNELS, SPIN = {KERNELS!r}, {SPIN!r}
gpu = hearth.connect(sys.argv[1], lanes=lanes).device(0)
identity = gpu.RawModule(code=KERNELS).get_function("identity")
x = np.zeros(8 << 20, np.int32)
args = [x, hearth.Out(x.shape, x.dtype), np.int32(x.size)]
def stop(*_):
    print("half way", flush=True)
    sys.stdin.read()
"""

SHARING = """
from hearth.transfer.shared_memory import Shared
place = Shared.place
def half(*given):
    taken = place(*given)
    stop()
    return taken
Shared.place = half
gpu.dispatch(identity, 1, 1, args)
"""

UPLOADING = """
messages = plan.upload_messages
plan.upload_messages = lambda head, data, chunk, progress, *rest: messages(
    head, data, chunk, lambda done, total: done < 8 << 20 or stop(), *rest)
gpu.dispatch(identity, 1, 1, args)
"""

DOWNLOADING = """
from hearth.session.connection import Connection
Connection.report_received = stop
gpu.dispatch(identity, 1, 1, args)
"""

RUNNING = """
spin = gpu.RawModule(code=SPIN).get_function("spin")
pending = gpu.dispatch_async(spin, 1, 1, [np.int64(700_000_000), hearth.Out(4 << 20, np.uint8)])
stop()
"""


@pytest.mark.parametrize(
    ("code", "gauge", "least"),
    [
        ("lanes = True" + CLIENT + SHARING, "memory_in_use_bytes", 32 << 20),
        ("lanes = False" + CLIENT + UPLOADING, "memory_in_use_bytes", 64 << 20),
        ("lanes = False" + CLIENT + DOWNLOADING, "memory_in_use_bytes", 32 << 20),
        # Its buffers count as free already, in the stream's order.
        ("lanes = False" + CLIENT + RUNNING, "staging_bytes", 1),
        ("lanes = True" + CLIENT + RUNNING, "segment_bytes", 4 << 20),
    ],
    ids=["shared", "up", "down", "kernel", "kernel and shared"],
)
def test_memory_of_a_killed_client_is_freed(brief: DaemonProcess, code: str, gauge: str, least: int) -> None:
    client = run_python(code, brief.unix)
    try:
        assert client.stdout is not None and client.stdout.readline() == "half way\n"
        wait_until(lambda: brief.gauge(gauge) >= least, "the dispatch")
        client.send_signal(signal.SIGKILL)
        client.wait()
        settled(brief)
        with brief.connect() as node:
            gpu = node.device(0)
            (out,) = gpu.dispatch(
                gpu.RawModule(code=KERNELS).get_function("broadcast"), 1, 4, [np.int32(3), Out(4, "i4"), np.int32(4)]
            )
            assert (out == 3).all()
    finally:
        client.kill()
        client.communicate()


# ---- kernels that end badly ----

FAULTS = """
extern "C" __global__ void wild(int* x, long long far) { x[far] = 1; }
extern "C" __global__ void endless(volatile int* x) { while (x[0] == 0) {} }
extern "C" __global__ void one(int* x) { x[threadIdx.x] = 1; }
"""


def test_kernels_that_fault_or_do_not_end(lossy: DaemonProcess) -> None:
    """Polling callers receive the error as well as blocking ones; the next dispatch works."""
    with lossy.connect() as node:
        gpu = node.device(0)
        module = gpu.RawModule(code=FAULTS)
        n = LARGE // 4
        attempts: list[Callable[[], hearth.PendingDispatch]] = [
            lambda: gpu.dispatch_async(module.get_function("wild"), 1, 1, [Out(4, np.int32), 1 << 45]),
            lambda: gpu.dispatch_async(module.get_function("wild"), 1, 1, [Out(n, np.int32), 1 << 45]),
            lambda: gpu.dispatch_async(module.get_function("endless"), 1, 1, [Out(4, np.int32)], timeout=0.1),
        ]
        for attempt in attempts:
            pending = attempt()
            wait_until(pending.done, "the news")
            assert pending.state == "failed"
            for _ in range(2):
                with pytest.raises(hearth.DeviceLostError):
                    pending.result()
            if attempt is attempts[2]:
                with pytest.raises(hearth.DeviceLostError, match=r"endless.*0\.1 s"):
                    pending.result()
            (out,) = gpu.dispatch(module.get_function("one"), 1, 4, [Out(4, np.int32)])
            assert (out == 1).all()


@pytest.mark.parametrize("lanes", [True, False], ids=["lanes", "gRPC"])
def test_cancelled_dispatch_delays_nothing(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch, lanes: bool) -> None:
    """A cancelled dispatch delays nothing, even if its upload had arrived and its download had not begun."""
    jobs = carried_jobs(monkeypatch)
    with daemon.connect(lanes=lanes) as node:
        gpu = node.device(0)
        identity = gpu.RawModule(code=KERNELS).get_function("identity")
        x = numbers(300_000)
        for number in range(10):
            outs: list[Any] = [((x.size,), np.int32)]
            gpu.dispatch_async(identity, blocks(x.size, 256), 256, ins=[x], outs=outs, scalars=[np.int32(x.size)])
            wait_until(lambda number=number: len(jobs) > number, "its thread")
            jobs[number].cancel()
            gpu.synchronize(timeout=30)
        assert gpu.memory_usage().bytes_in_use == 0
