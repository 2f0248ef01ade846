"""Arrays, their views and their memory, against a fake daemon."""

from __future__ import annotations

import gc
import io
import subprocess
import sys
import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hearth
from hearth import shapes
from hearth_proto import reasons
from tests.support.client.fake_daemon import FakeDaemon
from tests.support.timing import LATE

STRUCT = np.dtype([("a", np.int8), ("b", np.float32)], align=True)


@pytest.mark.parametrize(
    "dtype",
    [np.bool_, np.int8, np.uint16, np.float16, np.float64, np.complex128, ml_dtypes.bfloat16, STRUCT, "S5", ">i4"],
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
def test_up_and_down(gpu: hearth.Device, dtype: Any, shape: tuple[int, ...]) -> None:
    host = np.zeros(shape, dtype)
    host.reshape(-1).view(np.uint8)[:] = 1
    x = gpu.asarray(host)
    assert x.shape == shape and x.dtype == host.dtype.newbyteorder("=")
    assert (x.size, x.nbytes, x.itemsize, x.ndim) == (host.size, host.nbytes, host.itemsize, host.ndim)
    if host.size:
        assert x.strides == host.strides
    np.testing.assert_array_equal(x.get(), host)
    np.testing.assert_array_equal(np.asarray(x), host)


def test_lists_scalars_and_strided_arrays_as_inputs(gpu: hearth.Device) -> None:
    np.testing.assert_array_equal(gpu.asarray([[1, 2], [3, 4]]).get(), [[1, 2], [3, 4]])
    host = np.arange(24).reshape(2, 3, 4)
    for view in (host.T, host[:, ::2], host[::-1], np.broadcast_to(host[0], (5, 3, 4))):
        np.testing.assert_array_equal(gpu.asarray(view).get(), view)
    assert gpu.asarray(3.5, np.float32).get() == np.float32(3.5)
    assert gpu.asarray(np.arange(3), np.int8).dtype == np.int8


def test_the_host_array_is_captured(gpu: hearth.Device) -> None:
    for size in (10, 1 << 20):
        host = np.ones(size)
        x = gpu.asarray(host)
        host[:] = 2
        assert (x.get() == 1).all()


def test_large_arrays_are_sent_outside_the_batches(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    host = np.random.default_rng(0).random((1 << 19) + 3)
    seen: list[tuple[int, int]] = []
    x = gpu.asarray(host, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (host.nbytes, host.nbytes) and len(seen) > 10
    seen.clear()
    out = np.empty_like(host)
    assert x.get(out=out, progress=lambda done, total: seen.append((done, total))) is out
    np.testing.assert_array_equal(out, host)
    assert seen[-1] == (host.nbytes, host.nbytes) and len(seen) > 10
    assert all(not command.write.data for command in daemon.commands if command.WhichOneof("kind") == "write")


def test_a_failed_upload_raises_the_commands_own_error(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    daemon.fail_next["write"] = reasons.Refusal(reasons.Reason.QUOTA_EXCEEDED, "too much")
    with pytest.raises(hearth.QuotaExceededError, match="too much"):
        gpu.asarray(np.zeros(1 << 20))
    assert gpu.asarray(np.ones(1 << 18)).get().sum() == 1 << 18


def test_a_failed_download_raises_the_commands_own_error(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    x = gpu.zeros(1 << 20)
    daemon.fail_next["read"] = reasons.Refusal(reasons.Reason.BUFFER_LOST, "gone")
    started = time.monotonic()
    with pytest.raises(hearth.BufferLostError, match="gone"):
        x.get()
    assert time.monotonic() - started < LATE
    assert (x.get() == 0).all()


def test_creation(gpu: hearth.Device) -> None:
    assert gpu.zeros(3).dtype == np.float64
    np.testing.assert_array_equal(gpu.zeros((2, 3), np.int16).get(), np.zeros((2, 3)))
    np.testing.assert_array_equal(gpu.ones((2,), np.complex128).get(), np.ones(2))
    np.testing.assert_array_equal(gpu.full(3, 7, np.uint8).get(), [7, 7, 7])
    np.testing.assert_array_equal(gpu.full(3, -0.5).get(), [-0.5] * 3)
    np.testing.assert_array_equal(gpu.full(3, 2, ml_dtypes.bfloat16).get().astype(float), [2, 2, 2])
    np.testing.assert_array_equal(gpu.full(3, b"abcde", "S5").get(), [b"abcde"] * 3)
    assert (gpu.zeros(4, STRUCT).get() == np.zeros(4, STRUCT)).all()
    assert gpu.empty((2, 0)).get().shape == (2, 0)
    like = np.ones((2, 2), np.int8)
    assert gpu.empty_like(like).dtype == np.int8
    assert gpu.zeros_like(gpu.asarray(like)).get().sum() == 0
    assert gpu.ones_like(like, np.float32).get().dtype == np.float32
    assert gpu.full_like(like, 3).get().sum() == 12


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda gpu: gpu.empty(-1), ValueError),
        (lambda gpu: gpu.empty((2, 1.5)), TypeError),
        (lambda gpu: gpu.empty((1 << 40, 1 << 40)), ValueError),
        (lambda gpu: gpu.empty(3, object), TypeError),
        (lambda gpu: gpu.empty(3, "nonsense"), TypeError),
        (lambda gpu: gpu.asarray([[1], [1, 2]]), TypeError),
        (lambda gpu: gpu.asarray([None]), TypeError),
        (lambda gpu: gpu.zeros(3).set(np.zeros(4)), ValueError),
        (lambda gpu: gpu.zeros(3).set(np.zeros(3, np.float32)), TypeError),
        (lambda gpu: gpu.zeros(3).get(out=np.zeros(4)), ValueError),
        (lambda gpu: gpu.zeros(3).get(out=np.zeros(3, int)), ValueError),
        (lambda gpu: gpu.zeros(3).fill([1, 2, 3]), ValueError),
        (lambda gpu: gpu.zeros(3, np.uint8).fill(300), TypeError),
        (lambda gpu: gpu.zeros(3, np.uint8).__setitem__(0, 300), TypeError),
        (lambda gpu: gpu.zeros(3, np.uint8).__setitem__(0, -1), TypeError),
        (lambda gpu: gpu.zeros(3, np.int8).__setitem__(slice(None), [1, 2, 128]), TypeError),
        (lambda gpu: gpu.zeros(3).copy_from(gpu.zeros(4)), ValueError),
        (lambda gpu: gpu.zeros(3).copy_from(np.zeros(3)), TypeError),
        (lambda gpu: gpu.zeros(6).reshape(4, -1), ValueError),
        (lambda gpu: gpu.zeros(3, np.int8).view(np.int16), ValueError),
    ],
)
def test_mistakes_are_refused_before_anything_is_sent(
    gpu: hearth.Device, daemon: FakeDaemon, call: Any, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        call(gpu)
    assert isinstance(caught.value, hearth.HearthError) and caught.value.fix
    gpu.synchronize()
    assert not daemon.stream_errors


def test_views(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    host = np.arange(60, dtype=np.int32).reshape(5, 3, 4)
    x = gpu.asarray(host)
    for index in (slice(1, 3), slice(None), slice(-2, None), slice(4, 2), 0, -1, np.int64(2), ...):
        np.testing.assert_array_equal(x[index].get(), host[index])
    np.testing.assert_array_equal(x[1:][2][1].get(), host[1:][2][1])
    np.testing.assert_array_equal(x.reshape(15, -1).get(), host.reshape(15, -1))
    np.testing.assert_array_equal(x.reshape((3, 20))[1:].ravel().get(), host.reshape(3, 20)[1:].ravel())
    np.testing.assert_array_equal(x.view(np.int8).get(), host.view(np.int8))
    np.testing.assert_array_equal(x.view(np.int8).view(np.int64).get(), host.view(np.int64))
    x[2].fill(7)
    x[3:].set(np.zeros((2, 3, 4), np.int32))
    host[2], host[3:] = 7, 0
    np.testing.assert_array_equal(x.get(), host)
    assert len(x) == 5 and [row.shape for row in x] == [(3, 4)] * 5
    assert x[0][0][1].item() == 1
    for bad in ([0, 1], True, np.array([True, False])):
        with pytest.raises(hearth.UnsupportedError):
            x[bad]
    with pytest.raises(IndexError):
        x[5]
    with pytest.raises(TypeError):
        len(x[0][0][0])
    assert daemon.count("allocate") == 1


def test_copies(gpu: hearth.Device) -> None:
    x = gpu.asarray(np.arange(10))
    y = x.copy()
    y[:5].copy_from(x[5:])
    np.testing.assert_array_equal(y.get(), [5, 6, 7, 8, 9, 5, 6, 7, 8, 9])
    np.testing.assert_array_equal(x.get(), np.arange(10))
    x[:5].copy_from(x[:5])
    x[:5].copy_from(x[1:6])  # through a temporary copy
    np.testing.assert_array_equal(x.get(), [1, 2, 3, 4, 5, 5, 6, 7, 8, 9])
    assert gpu.asarray(x) is x
    assert gpu.array(x) is not x
    assert gpu.asarray(x, np.float32).dtype == np.float32


def test_memory_is_freed_with_the_last_view(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    x = gpu.zeros(100)
    view = x[10:][5:].reshape(5, 17)
    gpu.synchronize()
    del x
    gc.collect()
    assert view.get().shape == (5, 17)
    gpu.synchronize()
    assert len(daemon.buffers) == 1
    del view
    gc.collect()
    gpu.synchronize()
    assert not daemon.buffers


def test_memory_is_freed_without_further_use(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    arrays = [gpu.zeros(10) for _ in range(100)]
    gpu.synchronize()
    arrays.clear()
    deadline = time.monotonic() + 20
    while daemon.buffers and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not daemon.buffers


def test_freed_memory_is_available_to_the_next_allocation(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    for _ in range(50):
        x = gpu.empty(10)
        del x
    gpu.synchronize()
    kinds = [command.WhichOneof("kind") for command in daemon.commands]
    live = most = 0
    for kind in kinds:
        live += {"allocate": 1, "free": -1}.get(kind, 0)
        most = max(most, live)
    assert most <= 2


def test_freed_arrays_cannot_be_used(gpu: hearth.Device) -> None:
    x = gpu.zeros(3)
    view = x[1:]
    x.free()
    x.free()
    for use in (view.get, lambda: x.fill(1), x.copy, lambda: gpu.zeros(2).copy_from(view)):
        with pytest.raises(hearth.InvalidHandleError, match="freed"):
            use()
    assert "freed" in repr(x)


def test_a_repr_transfers_nothing(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    assert repr(gpu.zeros((2, 3), np.int8)) == "DeviceArray(shape=(2, 3), dtype=int8, device=0)"
    assert daemon.count("read") == 0


def test_implicit_views_by_the_host_are_refused(gpu: hearth.Device) -> None:
    with pytest.raises(ValueError, match="copy"):
        gpu.zeros(3).__array__(copy=False)
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":  # NumPy 1 does not pass `copy` on
        with pytest.raises(ValueError, match="copy"):
            np.array(gpu.zeros(3), copy=False)


def test_one_way_failures_surface_at_the_next_read(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    daemon.fail_next["fill"] = reasons.Refusal(reasons.Reason.OUT_OF_BOUNDS, "no")
    x = gpu.zeros(3)
    with pytest.raises(hearth.HearthError, match="fill: no") as caught:
        x.get()
    assert [failure.command for failure in caught.value.failures] == ["fill"]
    assert x.get().shape == (3,)


def test_progress_is_drawn_on_a_terminal(gpu: hearth.Device, monkeypatch: Any) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stderr, drawn in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stderr", stderr)
        gpu.asarray(np.zeros(1 << 18), progress=True)
        assert ("100%" in stderr.getvalue()) is drawn


def test_dtypes_by_the_name_of_a_package_that_was_not_imported(gpu: hearth.Device) -> None:
    """An attach, or the name "bfloat16", works without an earlier import of ml_dtypes."""
    program = """
import sys
import numpy as np
from hearth import shapes; from hearth.arrays import described
assert "ml_dtypes" not in sys.modules
for name in ("float32", "S3", "float", "int8"):
    assert shapes.dtype_of(name) == np.dtype(name)
assert "ml_dtypes" not in sys.modules
sys.modules["ml_dtypes"] = None
assert described.parse(b'{"dtype":"float8_e4m3fn","shape":[2,3]}') is None and shapes.named("int4") is None
del sys.modules["ml_dtypes"]
assert described.parse(b'{"dtype":"bfloat16","shape":[2,3]}')[1] == shapes.dtype_of("bfloat16")
assert shapes.dtype_of("float8_e5m2").itemsize == 1
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    for name in ("finfo", "iinfo", "float99", "uint3", "__doc__", "int"):
        assert shapes.named(name) is None
    with pytest.raises(hearth.DtypeError, match="nonsense"):
        gpu.zeros(3, "nonsense")
    for other in (">f4", [("a", ">i2")]):
        assert gpu.zeros(2, other).dtype.isnative
        with pytest.raises(hearth.DtypeError, match="byte order"):
            gpu.zeros(4, np.uint8).view(other)
