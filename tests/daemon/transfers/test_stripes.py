"""Bulk data over TCP in stripes: exact results, order, and no leftovers."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hearth
from hearth.transfer.stripe_pool import Stripes
from hearth.transport.stripe import StripeTiming
from tests.support.client.internals import connection_of
from tests.support.daemon.cutter import Cutter
from tests.support.daemon.harness import DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.striped import (
    MIB,
    MIX,
    STRIPES,
    connect,
    dispatched,
    live,
    prepare,
    settled,
    stripes_of,
    there_and_back,
    threads_of,
    unhurried,
    values,
)
from tests.support.timing import LATE

SIZES = (8 * MIB, 8 * MIB + 1, 13 * MIB - 3, 33 * MIB + 12345)


@pytest.fixture
def gpu(daemon: DaemonProcess) -> Iterator[hearth.Device]:
    with connect(daemon.grpc) as node:
        yield node.device(0)


# ---- when all is well ----


@pytest.mark.parametrize("size", SIZES)
def test_transferred_bytes_are_identical(gpu: hearth.Device, daemon: DaemonProcess, size: int) -> None:
    there_and_back(gpu, size)
    assert live(gpu) > 0
    settled(daemon, live(gpu))


def test_bytes_are_sent_over_stripes(gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are sent over stripes, not over gRPC."""
    unhurried(monkeypatch)

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


def test_dispatch_uses_stripes(gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_dispatch_with_outputs_over_different_paths(gpu: hearth.Device) -> None:
    """Over stripes, by a Download stream, and inside the answer, in every order of the outputs."""
    copies, a = gpu.RawKernel(COPIES, "copies"), values(10 * MIB)
    for sizes in itertools.permutations((10 * MIB, 3 * MIB, 1000)):
        pending = gpu.dispatch_async(
            copies, a.size // 256, 256, ins=[a], outs=[(size, np.uint8) for size in sizes],
            scalars=[np.int32(size) for size in sizes],
        )  # fmt: skip
        for more, out in enumerate(pending.result(60), 1):
            assert (out == a[: out.size] + more).all()


def test_transfers_keep_the_order_of_the_stream(gpu: hearth.Device) -> None:
    """Many writes to one buffer, each followed by a read."""
    x = gpu.empty(10 * MIB, np.uint8)
    for seed in range(6):
        host = values(10 * MIB, seed)
        x.set(host)
        y = x.copy()
        x.fill(seed)
        assert (y.get() == host).all() and (x.get() == seed).all()


def test_many_concurrent_transfers(daemon: DaemonProcess) -> None:
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


def test_daemon_without_stripes(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(listen={"lanes": ""})
    with connect(daemon.grpc) as node:
        for _ in range(2):
            there_and_back(node.device(0), 9 * MIB)
        assert stripes_of(node.device(0)).inspect().refused and live(node.device(0)) == 0


def test_download_timeout_during_a_stall(lossy: DaemonProcess, by_way_of: Any) -> None:
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
        with contextlib.suppress(hearth.TransferError):  # the failure of the read whose wait timed out
            gpu.synchronize()
        with contextlib.suppress(hearth.TransferError):
            x.get()
        there_and_back(gpu, 9 * MIB)


def test_stripes_end_with_their_session(start_daemon: StartDaemon) -> None:
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
