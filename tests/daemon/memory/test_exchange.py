"""Arrays from and to other libraries of this process: DLPack in both directions, and everything that `np.asarray`
accepts.

Tests that need a GPU are in `tests/gpu/test_interop_gpu.py`.
"""

from __future__ import annotations

import array
import gc
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hearth
from hearth import shapes
from hearth.interop import dlpack
from tests.support.daemon.harness import DaemonProcess, on_cpu, wait_until

HOST = np.arange(24, dtype=np.float32).reshape(4, 6)
NEWER = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="NumPy 2.1 asks for copies and devices"
)


class Exporter:
    """An object that supports DLPack only."""

    def __init__(self, host: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.host = host
        self.device = device
        self.taken = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, stream: object = None) -> Any:
        self.taken += 1
        host = self.host
        return dlpack.capsule(self, host.ctypes.data, self.device, host.shape, host.strides, host.dtype)


@pytest.fixture
def nothing_stays(daemon: DaemonProcess) -> Iterator[None]:
    """Checks that all exports and tensors end with the objects that were created from them."""
    before = dlpack.exported()
    yield
    gc.collect()
    assert dlpack.exported() == before
    wait_until(lambda: daemon.gauge("buffers_exported") == 0, "the end of the exports")


# ---- export ----


@on_cpu
def test_numpy_sees_the_memory_itself(gpu: hearth.Device, nothing_stays: None) -> None:
    x = gpu.asarray(HOST)
    x.fill(1)
    assert x.__dlpack_device__() == (dlpack.CPU, 0)
    seen = np.from_dlpack(x)
    assert seen.shape == HOST.shape and (seen == 1).all(), "the export did not wait for earlier work"
    x[1] = HOST[1]
    gpu.synchronize()
    np.testing.assert_array_equal(seen[1], HOST[1])
    part = np.from_dlpack(x[:, 2:4])
    np.testing.assert_array_equal(part[1], HOST[1, 2:4])
    if seen.flags.writeable:  # NumPy 2
        seen[0] = 9
        assert (x[0].get() == 9).all()
    del x
    gpu.zeros(HOST.shape, np.float32)
    assert (seen[3] == 1).all(), "the memory was freed while an array refers to it"
    del seen, part


@on_cpu
@NEWER
def test_copies_and_devices(gpu: hearth.Device, nothing_stays: None) -> None:
    x = gpu.asarray(HOST)
    own = np.from_dlpack(x, copy=True)
    x.fill(0)
    gpu.synchronize()
    np.testing.assert_array_equal(own, HOST)
    shared = np.from_dlpack(x, device="cpu", copy=False)
    x.fill(3)
    gpu.synchronize()
    assert (shared == 3).all()
    with pytest.raises(BufferError, match=r"\(2, 0\)"):
        x.__dlpack__(dl_device=(2, 0))
    del own, shared


def test_unsharable_arrays_raise_buffer_error(gpu: hearth.Device) -> None:
    """DLPack requires a BufferError; its cause is the HearthError with the reason."""
    x = gpu.zeros(4)
    x.publish("not-to-be-shared")
    try:
        for each in (gpu.attach("not-to-be-shared"), x, gpu.zeros(0)):
            with pytest.raises(BufferError) as caught:
                each.__dlpack__()
            assert isinstance(caught.value.__cause__, hearth.HearthError) and "Fix:" in str(caught.value)
    finally:
        gpu.unpublish("not-to-be-shared")
    x.free()
    with pytest.raises(hearth.InvalidHandleError):
        x.__dlpack__()
    with pytest.raises(AttributeError, match=r"x\.ipc\(\)"):
        _ = x.__cuda_array_interface__


@on_cpu
@pytest.mark.parametrize("dtype", [np.dtype(">f4"), np.dtype("f4", metadata={"unit": "m"})], ids=["order", "metadata"])
def test_an_array_made_from_another_byte_order_or_with_metadata_is_shared(
    gpu: hearth.Device, dtype: np.dtype, nothing_stays: None
) -> None:
    seen = np.from_dlpack(gpu.asarray(np.arange(3, dtype=dtype)))
    assert seen.dtype == np.float32 and seen.tolist() == [0, 1, 2]
    del seen


@pytest.mark.parametrize("dtype", ["S3", "U2", "M8[s]", [("a", "i4")]], ids=str)
def test_an_array_that_dlpack_does_not_support_stays_unshared(gpu: hearth.Device, dtype: Any) -> None:
    x = gpu.zeros(2, dtype)
    with pytest.raises(BufferError, match="DLPack does not support arrays of"):
        x.__dlpack__()
    x.view(np.uint8).publish("unshared")
    gpu.unpublish("unshared")


def test_dtypes_that_dlpack_has(gpu: hearth.Device) -> None:
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "bool"):
        host = np.array([0, 1, 0, 1]).astype(shapes.dtype_of(name))
        with dlpack.ConsumedTensor(Exporter(host).__dlpack__()) as taken:
            assert taken.dtype == host.dtype
            assert taken.host().tobytes() == host.tobytes()
    for dtype in ("S3", "M8[s]", ml_dtypes.int4):
        with pytest.raises(BufferError):
            Exporter(np.zeros(3, dtype)).__dlpack__()


# ---- import ----


def test_import_from_dlpack_only_object(gpu: hearth.Device, nothing_stays: None) -> None:
    for host in (HOST, HOST.T, HOST[::-2, 1:], HOST[:0], np.array(3.5), np.arange(6).astype(ml_dtypes.bfloat16)):
        given = Exporter(host)
        x = gpu.asarray(given)
        assert given.taken == 1 and x.dtype == host.dtype
        np.testing.assert_array_equal(x.get(), host)
    np.testing.assert_array_equal(gpu.asarray(Exporter(HOST, (dlpack.CUDA_HOST, 0)), np.int32).get(), HOST.astype("i4"))
    np.testing.assert_array_equal(gpu.array(Exporter(HOST)).get(), HOST)
    del given


def test_import_falls_back_to_dlpack_if_array_method_fails(gpu: hearth.Device, nothing_stays: None) -> None:
    """PyTorch's tensors of bfloat16 raise this error."""

    class Tensor(Exporter):
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            raise TypeError("Got unsupported ScalarType BFloat16")

    host = np.arange(6).astype(ml_dtypes.bfloat16)
    assert gpu.asarray(Tensor(host)).get().tobytes() == host.tobytes()


def test_import_from_objects_that_numpy_accepts(gpu: hearth.Device) -> None:
    class Interface:
        __array_interface__ = HOST.__array_interface__

    for given, expected in (
        (Interface(), HOST),
        (memoryview(HOST), HOST),
        (array.array("i", [1, 2, 3]), np.array([1, 2, 3], np.int32)),
        (bytearray(b"abc"), np.frombuffer(b"abc", np.uint8)),
        ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]])),
        (range(5), np.arange(5)),
        (np.float16(2), np.array(2, np.float16)),
        (np.ma.masked_array([1, 2], [0, 0]), np.array([1, 2])),
    ):
        x = gpu.asarray(given)
        assert x.dtype == expected.dtype
        np.testing.assert_array_equal(x.get(), expected)


@on_cpu
def test_export_of_another_session(gpu: hearth.Device, daemon: DaemonProcess, nothing_stays: None) -> None:
    with daemon.connect() as other, other.device(0).asarray(HOST).ipc() as view:
        np.testing.assert_array_equal(gpu.asarray(view).get(), HOST)
        np.testing.assert_array_equal(gpu.asarray(np.from_dlpack(view)).get(), HOST)


class OnGpu:
    """An array with the CUDA array interface, like CuPy's."""

    def __init__(self, **more: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": (4,), "typestr": "<f4", "data": (0x7F0000000000, False), "version": 3, "strides": None, **more,
        }  # fmt: skip


class WithGradients:
    @property
    def __cuda_array_interface__(self) -> Any:
        raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad")


class Broken:
    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


@on_cpu
@pytest.mark.parametrize(
    ("given", "error", "says", "fix"),
    [
        (OnGpu(), hearth.UnsupportedError, "not a GPU", "a.get()"),
        (OnGpu(strides=(8,)), hearth.UnsupportedError, "not contiguous", "ascontiguousarray"),
        (WithGradients(), hearth.UnsupportedError, "requires grad", "detach"),
        (Broken(), hearth.DtypeError, "requires grad", "np.asarray"),
        (Exporter(HOST, (10, 0)), hearth.UnsupportedError, "type 10", "host memory"),
        (Exporter(HOST, (dlpack.CUDA, 0)), hearth.UnsupportedError, "not a GPU", "a.cpu()"),
        (object(), hearth.DtypeError, "Python objects", "convert"),
    ],
    ids=["cuda", "strided", "gradients", "array", "metal", "dlpack-cuda", "object"],
)
def test_inaccessible_memory_is_refused(
    gpu: hearth.Device, given: Any, error: type[Exception], says: str, fix: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        gpu.asarray(given)
    assert isinstance(caught.value, hearth.HearthError) and fix in caught.value.fix
    gpu.synchronize()


class CudaStream:
    """A stream of another library: `described` is what its method returns."""

    def __init__(self, described: Any = (0, 77)) -> None:
        self.described = described

    def __cuda_stream__(self) -> Any:
        return self.described


@on_cpu
@pytest.mark.parametrize(
    ("given", "stream", "error", "says"),
    [
        (OnGpu(), CudaStream(), hearth.UnsupportedError, "not a GPU"),
        (OnGpu(), CudaStream((1, 77)), hearth.UnsupportedError, "version 1"),
        (OnGpu(), CudaStream(77), hearth.ArgumentError, "__cuda_stream__"),
        (OnGpu(), CudaStream((0, -1)), hearth.ArgumentError, "__cuda_stream__"),
        (OnGpu(), object(), hearth.ArgumentError, "neither"),
        (HOST, CudaStream(), hearth.ArgumentError, "not in GPU memory"),
        ([1, 2], CudaStream(), hearth.ArgumentError, "not in GPU memory"),
    ],
    ids=["no-gpu", "version", "number", "handle", "no-stream", "host", "list"],
)
def test_streams_of_other_libraries(
    gpu: hearth.Device, given: Any, stream: Any, error: type[Exception], says: str
) -> None:
    for copy in (gpu.asarray, gpu.array):
        with pytest.raises(error, match=says):
            copy(given, stream=stream)
    with pytest.raises(hearth.ArgumentError, match="not in GPU memory"):
        gpu.asarray(gpu.zeros(3), stream=CudaStream())


def test_own_streams_have_no_cuda_handle(gpu: hearth.Device) -> None:
    stream = gpu.stream()
    assert not hasattr(stream, "__cuda_stream__")
    with pytest.raises(hearth.UnsupportedAttributeError, match="__cuda_stream__") as caught:
        _ = stream.__cuda_stream__  # type: ignore[attr-defined]
    assert "no handle in this process" in caught.value.fix


def test_invalid_capsules_are_refused() -> None:
    capsule = Exporter(HOST).__dlpack__()
    with dlpack.ConsumedTensor(capsule):
        for bad in (capsule, object(), None):
            with pytest.raises(BufferError):
                dlpack.ConsumedTensor(bad)
