"""Memory shared with devices of this host: pinned arrays, and ordinary arrays through the ring; exact results."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hearth
from hearth.transfer import ring_buffer
from hearth.transport import memory_segments
from tests.support.daemon.kernels import COMMON, common, gated
from tests.support.daemon.pinned_arrays import INLINE, KIB64, noise, pinned, same, wait_ring_idle

pytestmark = pytest.mark.skipif(not memory_segments.possible(), reason="needs memfd")

SIZES = [
    1,
    KIB64 - 1,
    KIB64,
    KIB64 + 1,
    INLINE,
    INLINE + 1,
    3 * INLINE + 7,
    ring_buffer.SLOT_BYTES + 1,
    20 * INLINE + 13,
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("make", [pinned, np.copy], ids=["pinned", "ordinary"])
def test_every_size_makes_the_round_trip(gpu: hearth.Device, size: int, make: Callable[..., np.ndarray]) -> None:
    host, out = make(noise(size, size)), make(np.zeros(size, np.uint8))
    x = gpu.asarray(host)
    assert x.get(out=out) is out
    same(out, host)
    gpu.synchronize()
    host[...] = noise(size, size + 1)
    x.set(host)
    same(x.get(), host)


@pytest.mark.parametrize(
    ("start", "size"), [(0, KIB64), (1, KIB64 + 3), (777, 2 * INLINE + 1), (KIB64 - 1, 9 * INLINE), (4095, 1)]
)
@pytest.mark.parametrize("make", [pinned, np.copy], ids=["pinned", "ordinary"])
def test_parts_of_both_sides(gpu: hearth.Device, start: int, size: int, make: Callable[..., np.ndarray]) -> None:
    there, here = noise(10 * INLINE).copy(), make(noise(10 * INLINE, 1))
    x = gpu.asarray(there)
    x[start : start + size].set(here[777 : 777 + size])
    gpu.synchronize()
    there[start : start + size] = here[777 : 777 + size]
    same(x.get(), there)
    before = here.copy()
    x[start : start + size].get(out=here[5 : 5 + size])
    before[5 : 5 + size] = there[start : start + size]
    same(here, before)  # no other bytes have changed


@pytest.mark.parametrize("dtype", [np.float32, ">i8", np.complex128, np.dtype([("a", "u1"), ("b", "<f8")]), bool])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(300, 511), (3, 0, 5), (7, 50, 333), ()])
def test_dtypes_orders_and_shapes(gpu: hearth.Device, shape: tuple[int, ...], dtype: Any, order: str) -> None:
    kind = np.dtype(dtype)
    count = int(np.prod(shape))
    raw = noise(count * kind.itemsize).copy()
    raw &= 1  # makes valid booleans, and no NaN
    host = pinned(raw.view(kind).reshape(shape), order)
    x = gpu.asarray(host)
    native = kind.newbyteorder("=")
    same(x.get(), host)
    out = hearth.zeros_pinned(shape, native, order)  # type: ignore[arg-type]
    for blocking in (True, False):
        out[...] = np.zeros((), native)
        assert x.get(out=out, blocking=blocking) is out
        gpu.synchronize()
        same(out, host)


def test_slices_that_are_not_contiguous(gpu: hearth.Device) -> None:
    host = pinned(noise(4 * INLINE).reshape(2048, 2048))
    for index in (np.s_[::2], np.s_[:, 5:1000], np.s_[::-1], np.s_[3:900], np.s_[17]):
        same(gpu.asarray(host[index]).get(), host[index])
        out = hearth.zeros_pinned(host.shape, np.uint8)
        gpu.asarray(np.ascontiguousarray(host[index])).get(out=out[index], blocking=False)
        gpu.synchronize()
        same(out[index], host[index])
        assert int(out.sum(dtype=np.int64)) == int(host[index].sum(dtype=np.int64))


@pytest.mark.parametrize("make", [pinned, np.copy], ids=["pinned", "ordinary"])
def test_pitched_arrays_and_columns(gpu: hearth.Device, make: Callable[..., np.ndarray]) -> None:
    host = make(noise(3000 * 1001).reshape(3000, 1001))
    x = gpu.empty_pitched(host.shape, np.uint8)
    assert x.pitch > 1001
    x.set(host)
    out = make(np.zeros_like(host))
    same(x.get(out=out), host)
    y = gpu.asarray(host)
    part = make(np.zeros((3000, 501), np.uint8))
    same(y[:, 100:601].get(out=part), host[:, 100:601])
    y[:, 100:601].set(make(part[::-1]))
    expected = host.copy()
    expected[:, 100:601] = part[::-1]
    same(y.get(), expected)


def test_memory_of_others_and_read_only_memory(gpu: hearth.Device, tmp_path: Path) -> None:
    values = noise(3 * INLINE + 5)
    path = tmp_path / "values"
    path.write_bytes(values.tobytes())
    locked = pinned(values)
    locked.flags.writeable = False
    foreign = [
        values,
        np.frombuffer(bytearray(values.tobytes()), np.uint8),
        np.memmap(path, np.uint8, "r"),
        locked,
        locked[: 2 * INLINE],
    ]
    for host in foreign:
        x = gpu.asarray(host)
        same(x.get(), host)
        x.set(host, blocking=True)
        same(x.get(), host)
    with pytest.raises(hearth.ArgumentError, match="read-only"):
        gpu.asarray(values).get(out=locked)
    same(locked, values)


def test_both_devices_from_the_same_memory(pair: list[hearth.Device]) -> None:
    host, outs = pinned(noise(5 * INLINE)), [hearth.empty_pinned(5 * INLINE, np.uint8) for _ in pair]
    for device, out in zip(pair, outs, strict=True):
        device.asarray(host).get(out=out, blocking=False)
    for device, out in zip(pair, outs, strict=True):
        device.synchronize()
        same(out, host)
    ordinary = noise(30 * INLINE, 3)
    arrays = [device.asarray(ordinary) for device in pair]
    for array in arrays:
        same(array.get(), ordinary)


def test_many_concurrent_threads(pair: list[hearth.Device]) -> None:
    def work(number: int) -> None:
        device, random = pair[number % 2], np.random.default_rng(number)
        with device.stream():
            for turn in range(6):
                size = int(random.integers(1, 6 * INLINE))
                make = (pinned, np.copy)[turn % 2]
                host, out = make(noise(size, number * 100 + turn)), make(np.zeros(size, np.uint8))
                x = device.asarray(host)
                x.get(out=out, blocking=bool(random.integers(2)))
                device.current_stream.synchronize()
                same(out, host)

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(work, range(12)))
    for device in pair:
        wait_ring_idle(device)


def test_kernels_between_copies_run_in_order(gpu: hearth.Device) -> None:
    n = INLINE
    host, out = pinned(np.arange(n, dtype=np.float32)), hearth.empty_pinned((5, n), np.float32)
    x, y = gpu.zeros(n, np.float32), gpu.zeros(n, np.float32)
    saxpy = common(gpu, "saxpy")
    for turn in range(5):
        x.set(host)
        saxpy((n // 256,), (256,), (np.float32(1), x, y, np.int32(n)))
        y.get(out=out[turn], blocking=False)
    gpu.synchronize()
    for turn in range(5):
        same(out[turn], (turn + 1) * np.arange(n, dtype=np.float32))


def test_a_global_of_a_module(gpu: hearth.Device) -> None:
    module = gpu.RawModule(code=COMMON + "\n__device__ float table[100000];\n")
    host = pinned(np.arange(100_000, dtype=np.float32))
    table = module.get_global("table", np.float32, (100_000,))
    table.set(host)
    same(table.get(), host)


def test_import_loads_no_shared_memory_modules() -> None:
    program = (
        "import sys, hearth, hearth.blocking.node, hearth.blocking.device\n"
        "bad = [m for m in ('hearth.transport.memory_segments', 'hearth.transfer.ring_buffer', "
        "'hearth.transfer.shared_memory', 'mmap', 'concurrent.futures') "
        "if m in sys.modules]\n"
        "sys.exit(repr(bad) if [m for m in bad if m.startswith('hearth')] else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_pinned_uploads_do_not_wait_long_for_anything(gpu: hearth.Device) -> None:
    """Two hundred concurrent copies, none of which the device has started."""
    host = pinned(noise(KIB64))
    x, order = gpu.zeros((200, KIB64), np.uint8), gpu.zeros(1, np.int32)
    gpu.asarray(host)
    gpu.synchronize()
    with gated(gpu) as gate:
        gate.hold(order)
        for row in range(200):  # a copy that waits for the device would wait for the gate
            x[row].set(host)
        gate.open()
        got = x.get()
    assert all((row == host).all() for row in got)
