"""Arrays: uploaded data is downloaded unchanged, for every shape, dtype and view."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import DaemonProcess

DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32",
          "float64", "complex64", "complex128", "S5", "datetime64[ns]"]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_makes_the_round_trip(gpu: hearth.Device, dtype: str) -> None:
    host = np.frombuffer(np.random.default_rng(1).bytes(np.dtype(dtype).itemsize * 24), np.uint8)
    host = (host & 1 if dtype == "bool" else host).view(dtype).reshape(2, 3, 4)
    x = gpu.asarray(host)
    assert (x.shape, x.dtype, x.size, x.nbytes) == (host.shape, host.dtype, host.size, host.nbytes)
    assert x.get().tobytes() == host.tobytes()


def test_a_structured_dtype_makes_the_round_trip(gpu: hearth.Device) -> None:
    dtype = np.dtype([("a", "u1"), ("b", "f8"), ("c", "i4", (3,))], align=True)
    host = np.zeros(5, dtype)
    host["a"], host["b"], host["c"] = 7, np.pi, np.arange(15).reshape(5, 3)
    np.testing.assert_array_equal(gpu.asarray(host).get(), host)


@pytest.mark.parametrize(
    "host",
    [
        np.arange(24).reshape(4, 6).T,
        np.arange(40)[::3],
        np.arange(40)[::-1],
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.broadcast_to(np.float32(3), (4, 5)),
        np.arange(6, dtype=">i4"),
    ],
    ids=["transposed", "strided", "reversed", "fortran", "broadcast", "big-endian"],
)
def test_layouts_of_the_host_do_not_matter(gpu: hearth.Device, host: np.ndarray) -> None:
    back = gpu.asarray(host).get()
    assert back.flags.c_contiguous and back.dtype.isnative
    np.testing.assert_array_equal(back, host)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1, 1, 1)])
def test_small_and_empty_shapes(gpu: hearth.Device, shape: tuple[int, ...]) -> None:
    x = gpu.full(shape, 2.5, np.float32)
    assert x.get().shape == shape
    np.testing.assert_array_equal(x.get(), np.full(shape, 2.5, np.float32))


def test_host_array_may_change_after_the_call(gpu: hearth.Device) -> None:
    for size in (10, 3 << 20):
        host = np.full(size, 1, np.uint8)
        x = gpu.asarray(host)
        host[:] = 2
        assert (x.get() == 1).all()


def test_creation(gpu: hearth.Device) -> None:
    assert gpu.empty((2, 3)).dtype == np.float64
    np.testing.assert_array_equal(gpu.zeros((2, 3), np.int16).get(), np.zeros((2, 3), np.int16))
    np.testing.assert_array_equal(gpu.ones(4, np.complex64).get(), np.ones(4, np.complex64))
    np.testing.assert_array_equal(gpu.full((2, 2), 7).get(), np.full((2, 2), 7))
    np.testing.assert_array_equal(gpu.full(9, -1.5, np.float16).get(), np.full(9, -1.5, np.float16))
    like = gpu.full_like(np.zeros((3, 1), np.int8), 5)
    assert (like.shape, like.dtype) == ((3, 1), np.int8)
    np.testing.assert_array_equal(gpu.zeros_like(like).get(), np.zeros((3, 1), np.int8))
    np.testing.assert_array_equal(gpu.asarray([[1, 2], [3, 4]], np.float32).get(), np.array([[1, 2], [3, 4]], "f4"))


@pytest.mark.parametrize(
    "dtype", ["S3", "U2", "V4", "M8", "m8[s]", "?", "f2", "bfloat16", [("s", "S3"), ("v", "i4", (2,))]], ids=str
)
def test_zeros_of_every_dtype(gpu: hearth.Device, dtype: Any) -> None:
    x = gpu.zeros((2, 3), dtype)
    assert x.get().tobytes() == np.zeros((2, 3), x.dtype).tobytes()
    assert gpu.zeros_like(x).get().tobytes() == bytes(x.nbytes)


def test_full_of_structures_converts_as_numpy(gpu: hearth.Device) -> None:
    dtype = [("s", "S3"), ("v", "i4")]
    for value in (0, 7, (b"ab", 3)):
        host = np.empty(2, dtype)
        host.fill(value)
        assert gpu.full(2, value, dtype).get().tobytes() == host.tobytes()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 8, 12, 16, 24])
def test_fill_with_elements_of_any_size(gpu: hearth.Device, size: int) -> None:
    element = np.frombuffer(bytes(range(1, size + 1)), f"V{size}")[0]
    x = gpu.empty(1000, f"V{size}")
    x.fill(element)
    assert x.get().tobytes() == bytes(range(1, size + 1)) * 1000


def test_fill_of_a_view_changes_only_the_view(gpu: hearth.Device) -> None:
    x = gpu.zeros((10, 3), np.int32)
    x[4:7].fill(9)
    expected = np.zeros((10, 3), np.int32)
    expected[4:7] = 9
    np.testing.assert_array_equal(x.get(), expected)


def test_views_share_memory(gpu: hearth.Device) -> None:
    host = np.arange(60, dtype=np.int32).reshape(5, 12)
    x = gpu.asarray(host.copy())
    np.testing.assert_array_equal(x[1:4].get(), host[1:4])
    np.testing.assert_array_equal(x[-1].get(), host[-1])
    assert x[2][5].item() == host[2, 5]
    np.testing.assert_array_equal(x.reshape(3, -1).get(), host.reshape(3, -1))
    np.testing.assert_array_equal(x.ravel()[7:19].get(), host.ravel()[7:19])
    np.testing.assert_array_equal(x.view(np.uint8)[3].get(), host.view(np.uint8)[3])
    x[2].set(np.zeros(12, np.int32))
    host[2] = 0
    np.testing.assert_array_equal(x.get(), host)


def test_a_view_outlives_its_base(gpu: hearth.Device) -> None:
    base = gpu.asarray(np.arange(100))
    view = base[10:20]
    del base
    fresh = gpu.zeros(100, np.int64)
    np.testing.assert_array_equal(view.get(), np.arange(10, 20))
    assert not fresh.get().any()


def test_set_copy_and_out(gpu: hearth.Device) -> None:
    x = gpu.zeros((4, 4), np.float32)
    host = np.random.default_rng(2).random((4, 4), np.float32)
    x.set(host)
    y = x.copy()
    x.fill(0)
    np.testing.assert_array_equal(y.get(), host)
    x.copy_from(y)
    out = np.empty((4, 4), np.float32)
    assert x.get(out=out) is out
    np.testing.assert_array_equal(out, host)
    strided = np.zeros((4, 8), np.float32)
    x.get(out=strided[:, ::2])
    np.testing.assert_array_equal(strided[:, ::2], host)
    x[:2].copy_from(y[2:])
    np.testing.assert_array_equal(x.get(), host[[2, 3, 2, 3]])


def test_numpy_converts_device_arrays(gpu: hearth.Device) -> None:
    x = gpu.asarray(np.arange(6.0))
    np.testing.assert_array_equal(np.asarray(x), np.arange(6.0))
    assert np.asarray(x, np.float32).dtype == np.float32
    assert gpu.full((), 3).item() == 3
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(x, copy=False) if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else x.__array__(copy=False)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda gpu: gpu.asarray(np.array([object()])), hearth.DtypeError),
        (lambda gpu: gpu.empty(-1), hearth.ArgumentError),
        (lambda gpu: gpu.empty(1.5), hearth.DtypeError),
        (lambda gpu: gpu.empty((1 << 40, 1 << 40)), hearth.ArgumentError),
        (lambda gpu: gpu.zeros(4).set(np.zeros(5)), hearth.ArgumentError),
        (lambda gpu: gpu.zeros(4).set(np.zeros(4, np.int32)), hearth.DtypeError),
        (lambda gpu: gpu.zeros(4).get(out=np.zeros(5)), hearth.ArgumentError),
        (lambda gpu: gpu.zeros(4)[[0, 1]], hearth.UnsupportedError),
        (lambda gpu: gpu.zeros(4)[4], IndexError),
        (lambda gpu: gpu.zeros(4).reshape(3, 2), hearth.ArgumentError),
        (lambda gpu: gpu.zeros(4).copy_from(gpu.zeros(5)), hearth.ArgumentError),
        (lambda gpu: gpu.zeros(4).fill("x"), hearth.DtypeError),
    ],
)
def test_invalid_arguments_are_refused_by_the_client(gpu: hearth.Device, make: object, error: type[Exception]) -> None:
    assert callable(make)
    with pytest.raises(error):
        make(gpu)
    gpu.synchronize()  # the refused calls have sent nothing


def test_overlapping_views_are_copied_through_new_memory(gpu: hearth.Device) -> None:
    x = gpu.asarray(np.arange(10))
    x[:5].copy_from(x[3:8])
    np.testing.assert_array_equal(x.get(), [3, 4, 5, 6, 7, 5, 6, 7, 8, 9])
    x[:5].copy_from(x[5:])
    np.testing.assert_array_equal(x.get(), np.tile(np.arange(5, 10), 2))


def test_arrays_of_another_device_are_copied_and_of_another_session_refused(
    pair: list[hearth.Device], daemon: DaemonProcess
) -> None:
    x = pair[0].ones(4)
    copied, target = pair[1].asarray(x), pair[1].zeros(4)
    target.copy_from(x)
    assert copied.device is pair[1] and (copied.get() == 1).all() and (target.get() == 1).all()
    with daemon.connect() as other:
        with pytest.raises(hearth.UnsupportedError, match="another session"):
            other.device(1).asarray(x)
        with pytest.raises(hearth.UnsupportedError, match="different sessions"):
            other.device(0).zeros(4).copy_from(x)
