"""Shared memory on a GPU: its speed, and the work that it delays.

The general tests are in `tests/daemon/transfers/test_segments.py`, which run on GPUs with HEARTH_TEST_BACKEND=cuda.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import hearth
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon import harness
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.kernels import COMMON
from tests.support.daemon.segments import Shared, Sharing, read, write

pytestmark = pytest.mark.gpu

MIB = 1 << 20
GIB = 1 << 30
SIZE = 256 * MIB
ROUNDS = 7


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    backend, harness.BACKEND = harness.BACKEND, "cuda"
    try:
        process = DaemonProcess(tmp_path_factory.mktemp("compiled"))
    finally:
        harness.BACKEND = backend
    yield process
    code = process.stop()
    log, left = process.log(), process.left_behind()
    process.remove()
    assert code == 0 and not left, log[-4000:]


def best(work: Callable[[], object]) -> float:
    """Returns the seconds of the fastest of several rounds."""
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


def local() -> tuple[float, float]:
    """Returns the GB/s of copies from and to page-locked memory in this process, as (up, down)."""
    from cupy_backends.cuda.api import runtime

    host, device = runtime.hostAlloc(SIZE, 0), runtime.malloc(SIZE)
    stream = runtime.streamCreateWithFlags(runtime.streamNonBlocking)

    def copy(to: int, since: int, kind: int) -> None:
        runtime.memcpyAsync(to, since, SIZE, kind, stream)
        runtime.streamSynchronize(stream)

    try:
        up = best(lambda: copy(device, host, runtime.memcpyHostToDevice))
        down = best(lambda: copy(host, device, runtime.memcpyDeviceToHost))
    finally:
        runtime.streamDestroy(stream)
        runtime.free(device)
        runtime.freeHost(host)
    return SIZE / up / 1e9, SIZE / down / 1e9


def test_copy_of_shared_memory_has_dma_speed(daemon: DaemonProcess) -> None:
    """The benchmark measures the exact speed; this test only shows that nothing prevents it."""
    pinned_up, pinned_down = local()
    with Sharing(daemon.unix) as sharing:
        memory = sharing.shared.share(1, SIZE)
        data = np.random.default_rng(1).bytes(SIZE)
        memory[:] = data
        buffer = sharing.allocate(SIZE)
        up = SIZE / best(lambda: sharing.ask(write(buffer, 1, SIZE))) / 1e9
        memory[:] = bytes(SIZE)
        down = SIZE / best(lambda: sharing.ask(read(buffer, 1, SIZE))) / 1e9
        assert memory[:] == data
    print(
        f"\n256 MiB: up {up:.1f} of {pinned_up:.1f} GB/s ({up / pinned_up:.3f}), "
        f"down {down:.1f} of {pinned_down:.1f} GB/s ({down / pinned_down:.3f})"
    )
    assert up > 0.5 * pinned_up and down > 0.5 * pinned_down
    assert "segments_not_locked" not in daemon.log()


def test_random_ranges(daemon: DaemonProcess) -> None:
    size = 100 * MIB + 12345
    draw = np.random.default_rng(2)
    with Sharing(daemon.unix) as sharing:
        memory = np.frombuffer(sharing.shared.share(1, size), np.uint8)
        memory[:] = draw.integers(0, 256, size, np.uint8)
        theirs, mine = memory.copy(), np.zeros(size, np.uint8)
        buffer = sharing.allocate(size)
        sharing.ask(c.Command(fill=c.Fill(buffer=buffer, size=size, pattern=b"\0")))
        for step in range(60):
            length = int(draw.integers(0, size))
            at, offset = (int(draw.integers(0, size - length + 1)) for _ in range(2))
            if step % 2:
                sharing.ask(write(buffer, 1, length, offset, at))
                mine[offset : offset + length] = theirs[at : at + length]
            else:
                sharing.ask(read(buffer, 1, length, offset, at))
                theirs[at : at + length] = mine[offset : offset + length]
        assert (memory == theirs).all()
        sharing.ask(read(buffer, 1, size))
        assert (memory == mine).all()
        del memory


def test_rows_across_parts(daemon: DaemonProcess) -> None:
    width, rows, pitch = 3 * MIB + 1, 31, 4 * MIB
    with Sharing(daemon.unix) as sharing:
        memory = sharing.shared.share(1, width * rows)
        data = np.random.default_rng(3).bytes(width * rows)
        memory[:] = data
        buffer = sharing.allocate(pitch * rows)
        shape = c.Rows(width=width, rows=rows, pitch=pitch)
        sharing.ask(write(buffer, 1, width * rows, rows=shape))
        memory[:] = bytes(width * rows)
        sharing.ask(read(buffer, 1, width * rows, rows=shape))
        assert memory[:] == data


class Launcher:
    """Another client, which launches and waits repeatedly."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self._daemon = daemon
        self._over, self._warm = threading.Event(), threading.Event()
        self.times: list[tuple[float, float]] = []
        """(time of the start, seconds) of each round."""
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with hearth.connect(self._daemon.unix) as node:
            gpu = node.device(0)
            x = gpu.zeros(1024, np.int32)
            kernel = gpu.RawModule(code=COMMON).get_function("add_one")
            while not self._over.is_set():
                begun = time.perf_counter()
                kernel((1,), (1024,), (x, np.int32(1024)))
                gpu.synchronize()
                self.times.append((begun, time.perf_counter() - begun))
                if len(self.times) > 1000:
                    self._warm.set()

    def __enter__(self) -> Launcher:
        self._thread.start()
        assert self._warm.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def worst(self, since: float, until: float) -> float:
        """Returns the milliseconds of the slowest round that overlaps the time between `since` and `until`."""
        return max((took for begun, took in self.times if begun < until and begun + took > since), default=0.0) * 1e3


@pytest.mark.parametrize("size", [64 * MIB, GIB])
def test_locking_of_pages_and_latency_of_other_clients(daemon: DaemonProcess, size: int) -> None:
    """Measures the locking and unlocking of pages while a client launches and waits."""
    with Launcher(daemon) as other:
        quiet = time.perf_counter() - 0.2
        begun = time.perf_counter()
        median = statistics.median(took for _, took in other.times) * 1e3
        alone = other.worst(quiet, begun)
        with Sharing(daemon.unix) as sharing:
            begun = time.perf_counter()
            sharing.shared.share(1, size)
            shared = time.perf_counter()
            sharing.shared.release(1)
            wait_until(lambda: daemon.gauge("segments") == 0, "its end")
            ended = time.perf_counter()
        time.sleep(0.1)
    taking, giving = other.worst(begun, shared), other.worst(shared, ended)
    print(
        f"\n{size >> 20} MiB: shared in {(shared - begun) * 1e3:.1f} ms, gone {(ended - shared) * 1e3:.1f} ms later; "
        f"launch + synchronize {median:.3f} ms, the longest: alone {alone:.2f}, during sharing {taking:.2f}, "
        f"during the release {giving:.2f} ms"
    )
    assert max(taking, giving) < 1000


def test_release_during_a_running_kernel_delays_no_other_work(daemon: DaemonProcess) -> None:
    """No other work waits for the release: neither a launch on another stream with a wait for it, nor further
    sharing."""
    with hearth.connect(daemon.unix) as node, Sharing(daemon.unix) as sharing:
        gpu = node.device(0)
        module = gpu.RawModule(code=COMMON)
        spin, add = module.get_function("spin"), module.get_function("add_one")
        x = gpu.zeros(32, np.int32)
        add((1,), (32,), (x, np.int32(32)))
        spin((1,), (1,), (np.int64(1000),))
        gpu.synchronize()
        # `gpu.synchronize` would wait for the kernel, because it waits for all streams of the session
        main = gpu.default_stream
        sharing.shared.share(1, 64 * MIB)
        with gpu.stream() as side:
            spin((1,), (1,), (np.int64(3_000_000_000),))  # in cycles: one or two seconds
            sharing.shared.release(1)
            begun = time.perf_counter()
            sharing.shared.share(2, 64 * MIB)
            shared = time.perf_counter()
        main.synchronize()
        reached = time.perf_counter()
        add((1,), (32,), (x, np.int32(32)))
        gpu.flush()
        given = time.perf_counter()
        main.synchronize()
        launched = time.perf_counter()
        side.synchronize()
        kernel = time.perf_counter()
        wait_until(lambda: daemon.gauge("segments") == 1, "its end")
    print(
        f"\nbeside a kernel of {kernel - begun:.2f} s: sharing 64 MiB took {(shared - begun) * 1e3:.1f} ms, a wait "
        f"for nothing {(reached - shared) * 1e3:.1f} ms, a launch given to it {(given - reached) * 1e3:.1f} ms, "
        f"done {(launched - given) * 1e3:.1f} ms later"
    )
    assert launched - begun < 0.5 * (kernel - begun)


def test_a_killed_client_leaves_nothing(daemon: DaemonProcess) -> None:
    with Sharing(daemon.unix) as sharing:
        generation = sharing.stream.attached.generation
        files = Path(f"/proc/{daemon.device_pid()}/fd")
        for turn in range(21):
            shared = Shared(sharing.raw, generation)
            shared.share(1, 16 * MIB)
            shared.end.close()
            if turn == 0:
                wait_until(lambda: daemon.gauge("segments") == 0, "the end of the first")
                before = len(list(files.iterdir()))
    wait_until(lambda: daemon.gauge("segments") == 0, "their end")
    maps = Path(f"/proc/{daemon.device_pid()}/maps").read_text()
    assert "memfd:segment" not in maps
    assert len(list(files.iterdir())) < before + 10, "20 segments leave no file each"
