"""Arrays behave as NumPy's users expect: assignment, conversions, casts; refusals name an alternative."""

from __future__ import annotations

import copy
import operator
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hearth
from hearth import shapes
from hearth.arrays import astype
from tests.support.client.internals import memory_of
from tests.support.daemon.harness import DaemonProcess

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def noise(shape: Any, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 100, shape, np.int32)


# ---- reading ----


def test_iteration_yields_rows(gpu: hearth.Device) -> None:
    host = noise((3, 4))
    x = gpu.asarray(host)
    assert len(x) == 3
    for row, expected in zip(x, host, strict=True):
        np.testing.assert_array_equal(row.get(), expected)
    first, *_, last = x[1]
    assert first.shape == () and (int(first), int(last)) == (host[1, 0], host[1, 3])
    for row in x:
        row[:] = 0
    assert not x.get().any()
    with pytest.raises(TypeError, match="without axes"):
        iter(gpu.zeros(()))
    with pytest.raises(TypeError):
        len(gpu.zeros(()))
    assert list(gpu.zeros((0, 3))) == []


def test_single_elements_convert_to_numbers(gpu: hearth.Device) -> None:
    x = gpu.asarray(np.array([[2.5, -1.0]], np.float32))
    assert float(x[0, 0]) == 2.5 and int(x[0, 0]) == 2 and complex(x[0, 0]) == 2.5
    assert x.item(1) == x.item(-1) == x.item(0, 1) == -1.0 and isinstance(x.item(0), float)
    assert bool(x[0, 0]) and not gpu.zeros(1)
    assert x.tolist() == [[2.5, -1.0]] and gpu.full((), 3).tolist() == 3
    assert list(range(10))[gpu.full((), 3, np.int8)] == 3 and x[gpu.zeros((), np.int64)].shape == (2,)
    assert f"{x[0, 0]:.2f}" == "2.50" and f"{x}" == str(x) == repr(x)
    for refused, error in (
        (lambda: float(x), TypeError),
        (lambda: int(gpu.zeros(0)), TypeError),
        (lambda: bool(x), ValueError),
        (x.item, ValueError),
        (lambda: x.item(2), IndexError),
        (lambda: x.item(0, 0, 0), ValueError),
        (lambda: operator.index(x[0, 0]), TypeError),
        (lambda: operator.index(gpu.zeros(1, np.int32)), TypeError),
        (lambda: f"{x:.2f}", TypeError),
    ):
        with pytest.raises(error):
            refused()


def test_numpy_takes_a_copy(gpu: hearth.Device) -> None:
    host = noise((3, 4))
    x = gpu.asarray(host)
    own = np.array(x, copy=True)
    own[:] = 0
    np.testing.assert_array_equal(x, host)
    np.testing.assert_array_equal(np.concatenate([x, x]), np.concatenate([host, host]))
    assert np.asarray(x, np.float64).dtype == np.float64 and np.asarray(x[1, 2]) == host[1, 2]
    out = np.zeros((3, 4), np.int32)
    out[...] = x
    np.testing.assert_array_equal(out, host)


def test_views_of_other_axes(gpu: hearth.Device) -> None:
    x = gpu.asarray(noise((1, 3, 1, 4)))
    host = x.get()
    for view, expected in (
        (x.squeeze(), host.squeeze()),
        (x.squeeze(0), host.squeeze(0)),
        (x.squeeze((0, -2)), host.squeeze((0, -2))),
        (x[:, :2, :, 1:3].squeeze(0), host[:, :2, :, 1:3].squeeze(0)),
        (x.transpose(2, 1, 0, 3), host.transpose(2, 1, 0, 3)),
        (x[0, :, 0, 0].T, host[0, :, 0, 0].T),
        (x[:, :, 0, 1:2][0].T, host[:, :, 0, 1:2][0].T),
        (x[..., ::2], host[..., ::2]),
        (x[0, 1, 0, ::3], host[0, 1, 0, ::3]),
        (x.reshape(-1), host.reshape(-1)),
    ):
        assert memory_of(view) is memory_of(x)
        np.testing.assert_array_equal(view.get(), expected)
    flat = x[..., 1:3].flatten()
    np.testing.assert_array_equal(flat.get(), host[..., 1:3].flatten())
    assert memory_of(flat) is not memory_of(x) and flat.flags.c_contiguous
    for refused, error in (
        (lambda: x[..., 1:3].reshape(-1, copy=False), hearth.UnsupportedError),
        (lambda: x.squeeze(1), hearth.ArgumentError),
        (lambda: x.squeeze(4), IndexError),
        (lambda: x.transpose(0, 0, 1, 2), hearth.ArgumentError),
        (lambda: x.view(">i4"), hearth.DtypeError),
        (lambda: x["a"], IndexError),
        (lambda: x[1.5], IndexError),
        (lambda: x[0, [0, 2]], hearth.UnsupportedError),
        (lambda: x[0, np.array([0, 2])], hearth.UnsupportedError),
        (lambda: x[host > 1], hearth.UnsupportedError),
    ):
        with pytest.raises(error) as caught:
            refused()
        assert not isinstance(caught.value, hearth.HearthError) or caught.value.fix


# ---- assignment ----

ASSIGNED: list[tuple[Any, Callable[[np.ndarray], Any]]] = [
    (..., lambda h: 7),
    ((1, 2), lambda h: 3.9),
    ((slice(None), 1), lambda h: np.arange(6)),
    ((slice(1, 3), 1, None), lambda h: [[1]]),
    ((0, slice(None), slice(1, 3)), lambda h: [8, 9]),
    (slice(1, None), lambda h: h[0] * 2),
    ((..., slice(None, None, 2)), lambda h: np.float32(-4)),
    (slice(None, None, 2), lambda h: np.arange(6.5, 12.5)[None, None]),
    (np.newaxis, lambda h: h[::-1].copy()),
    ((-1, -1, -1), lambda h: np.array(1)),
    ((slice(3, 1), slice(None)), lambda h: 5),
]


@pytest.mark.parametrize(("index", "make"), ASSIGNED, ids=lambda value: str(value) if not callable(value) else "")
def test_assignment(gpu: hearth.Device, index: Any, make: Callable[[np.ndarray], Any]) -> None:
    host = noise((4, 5, 6))
    x, y = gpu.asarray(host), gpu.asarray(host)
    value = make(host)
    expected = host.copy()
    expected[index] = value
    x[index] = value
    np.testing.assert_array_equal(x.get(), expected)
    y[index] = gpu.asarray(value)  # the same from a device array: no data passes through the host
    np.testing.assert_array_equal(y.get(), expected)


RECORD = [("a", "i4"), ("b", "f4")]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("u8", [2**63 + 1, 1]),
        ("i8", [2**53 + 1, 0.5]),
        ("u8", [2**64 - 1, 0.5]),
        ("u8", (2**63, 1.5)),
        ("i4", [True, 2.75]),
        ("f4", [1, None]),
        ("S3", ["ab", "cdef"]),
        ("i4", ["5", "6"]),
        (RECORD, [(1, 2.5), (3, 4)]),
        (RECORD, [(2**31 - 1, 2.5)]),
    ],
    ids=str,
)
def test_assigned_lists_are_converted_element_by_element(gpu: hearth.Device, dtype: Any, value: Any) -> None:
    x, host = gpu.zeros(2, dtype), np.zeros(2, dtype)
    host[...] = value
    x[...] = value
    np.testing.assert_array_equal(x.get(), host)


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="NumPy 1 keeps the low bits")
@pytest.mark.parametrize(
    ("dtype", "value"),
    [("u8", [-1, 2**63]), ("u1", [300.0, 1]), ("i4", [np.nan, 1]), ("f4", [1 + 1j, 0]), ("i8", [2**63, 0.5])],
    ids=str,
)
def test_lists_that_do_not_fit_are_refused(gpu: hearth.Device, dtype: str, value: Any) -> None:
    x = gpu.zeros(2, dtype)
    with pytest.raises((TypeError, ValueError, OverflowError)):
        np.zeros(2, dtype)[...] = value
    with pytest.raises(hearth.DtypeError):
        x[...] = value
    assert not x.get().any()


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="NumPy 1 keeps the low bits")
@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("i4", np.int64(2**40)),
        ("i8", np.uint64(2**63 + 1)),
        ("u1", 300.7),
        ("u4", -1.5),
        ("i4", np.datetime64("2020-01-01")),
        ("i4", np.nan),
        ("u1", np.inf),
        ("f4", 1 + 2j),
    ],
    ids=str,
)
def test_numbers_that_do_not_fit_are_refused(gpu: hearth.Device, dtype: str, value: Any) -> None:
    x = gpu.zeros(2, dtype)
    with pytest.raises((TypeError, ValueError, OverflowError)):
        np.zeros(2, dtype)[0] = value
    uses: list[Callable[[], Any]] = [
        lambda: x.fill(value),
        lambda: x[:1].__setitem__(0, value),
        lambda: x.__setitem__(..., value),
        lambda: gpu.full(2, value, dtype),
    ]
    for use in uses:
        with pytest.raises(hearth.DtypeError) as caught:
            use()
        assert caught.value.fix
    assert not x.get().any()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("u1", np.float32(44.5)), ("i4", "5"), ("S3", "abcd"), ("S3", np.datetime64("2020-01-01")), ("f4", None),
     ("f4", np.array(2)), ("m8[s]", np.timedelta64("NaT")), (RECORD, (1, 2.5)), (RECORD, 7)],
    ids=str,
)  # fmt: skip
def test_a_fill_converts_as_numpy(gpu: hearth.Device, dtype: Any, value: Any) -> None:
    x, host = gpu.empty(2, dtype), np.empty(2, dtype)
    x.fill(value)
    host.fill(value)
    assert x.get().tobytes() == host.tobytes()


def test_broadcast_assignment_sends_each_element_once(gpu: hearth.Device) -> None:
    row = np.arange(300, dtype=np.float32)
    x = gpu.zeros((37, 5, 300), np.float32)
    with gpu.trace() as trace:
        x[...] = row
    assert sum(event.bytes for event in trace.events if event.name == "write") == row.nbytes
    np.testing.assert_array_equal(x.get(), np.broadcast_to(row, x.shape))
    x[:, 1:3] = gpu.asarray(row[::-1].copy())
    expected = np.broadcast_to(row, x.shape).copy()
    expected[:, 1:3] = row[::-1]
    np.testing.assert_array_equal(x.get(), expected)


def test_assignment_between_parts_of_one_array(gpu: hearth.Device) -> None:
    host = noise((6, 4))
    x = gpu.asarray(host)
    x[1:], host[1:] = x[:-1], host[:-1].copy()
    np.testing.assert_array_equal(x.get(), host)
    x[...] = x
    x[:] = x[2]
    np.testing.assert_array_equal(x.get(), np.broadcast_to(host[2], host.shape))


def test_invalid_assignments_are_refused(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    x = gpu.zeros((3, 4), np.uint8)
    with daemon.connect() as other:
        elsewhere = other.device(0).zeros(4, np.uint8)
        for value, error in (
            (np.zeros(3), hearth.ArgumentError),
            (np.zeros((2, 3, 4)), hearth.ArgumentError),
            (gpu.zeros(3), hearth.ArgumentError),
            (gpu.zeros((2, 1)), hearth.ArgumentError),
            (300, hearth.DtypeError),
            ([1, 2, 3, 300], hearth.DtypeError),
            ("a", hearth.DtypeError),
            (object(), hearth.DtypeError),
            (None, hearth.DtypeError),
            (elsewhere, hearth.UnsupportedError),
        ):
            with pytest.raises(error) as caught:
                x[...] = value
            assert caught.value.fix
        with pytest.raises(IndexError):
            x[3] = 1
        with pytest.raises(hearth.UnsupportedError):
            x[x.get() > 1] = 1
    gpu.synchronize()  # the refused calls have sent nothing
    assert not x.get().any()


def test_assignment_to_published_arrays_is_refused(gpu: hearth.Device) -> None:
    x = gpu.zeros(4)
    x.publish("assigned")
    try:
        attached = gpu.attach("assigned")
        attached[0] = 1
        with pytest.raises(hearth.HearthError) as caught:
            gpu.synchronize()
        assert caught.value.reason == "READ_ONLY"
    finally:
        gpu.unpublish("assigned")


# ---- casts ----

NAMES = list(astype._NAMES)
MIXED = ["bool", "int8", "uint64", "float16", "float32", "float64", "bfloat16", "complex64"]
KINDS = {name: shapes.dtype_of(name) for name in NAMES}


def values(since: np.dtype, to: np.dtype) -> np.ndarray:
    """Returns values that both types represent, and values that are rounded; none whose conversion is undefined in
    C++."""
    if since.kind == "b":
        return np.array([True, False, True])
    plain = [0, 1, 2, 100, 127]
    if since.kind not in "iu":
        plain += [1.5, 2.75, 1 / 3, 0.1]  # type: ignore[list-item]
    if since.itemsize > 1:
        plain += [257.0 / 2 if since.kind not in "iu" else 200]  # type: ignore[list-item]
        plain = plain if to.itemsize > 1 or to.kind in "uV" else plain[:-1]
    if since.kind not in "ub" and to.kind not in "u":
        plain += [-1, -100]
    found = np.array(plain).astype(since)
    return found + (found * np.complex64(1j)).astype(since) if since.kind == "c" else found


def test_dtypes_convert_as_in_numpy(gpu: hearth.Device) -> None:
    """Converts from one type of each sort to each type. All kernels are in one module, because separate compiles would
    take long."""
    for since in NAMES:
        for to in NAMES:
            assert astype.kernel_source(KINDS[since], KINDS[to])
    pairs = [(KINDS[since], KINDS[to]) for since in MIXED for to in MIXED if since != to]
    parts = [
        astype.kernel_source(since, to)
        .replace("#include", "//")
        .replace("hearth_astype", f"cast_{since.name}_{to.name}")
        for since, to in pairs
    ]
    module = gpu.RawModule(code=astype._INCLUDES + "".join(parts))
    for since, to in pairs:
        host = values(since, to)
        x, y = gpu.asarray(host), gpu.empty(host.shape, to)
        kernel = module.get_function(f"cast_{since.name}_{to.name}")
        kernel((1,), (32,), (x, y, x.size, x.size, 0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ignores NumPy's warning about the discarded imaginary part
            expected = host.astype(to)
        np.testing.assert_array_equal(y.get(), expected, err_msg=f"{since} to {to}")


def test_astype(gpu: hearth.Device) -> None:
    host = noise((50, 70)).astype(np.float32) + np.float32(0.5)
    x = gpu.asarray(host)
    y = x.astype(BFLOAT16)
    np.testing.assert_array_equal(y.get(), host.astype(BFLOAT16))
    np.testing.assert_array_equal(x[3:9, 10:33].astype("bfloat16").get(), host[3:9, 10:33].astype(BFLOAT16))
    np.testing.assert_array_equal(x[:, ::7].astype(BFLOAT16).get(), host[:, ::7].astype(BFLOAT16))
    assert x.astype(np.float32, copy=False) is x and x.astype(np.float32) is not x
    np.testing.assert_array_equal(x.astype(np.float32).get(), host)
    assert gpu.asarray(x, BFLOAT16).dtype == BFLOAT16 and gpu.asarray(x, np.float32) is x
    assert gpu.zeros((0, 3)).astype(BFLOAT16).shape == (0, 3)
    assert x[0, 0].astype(BFLOAT16).shape == ()
    with pytest.raises(hearth.DtypeError, match="same_kind"):
        x.astype(np.int32, casting="same_kind")
    with pytest.raises(hearth.UnsupportedError, match="datetime64") as caught:
        gpu.zeros(3, "M8[s]").astype(np.float64)
    assert "x.get()" in caught.value.fix
    np.testing.assert_array_equal(gpu.asarray(gpu.asarray([1, 2]), "S3").get(), np.array([b"1", b"2"]))


def test_every_byte_but_zero_is_true_in_a_cast(gpu: hearth.Device) -> None:
    host = np.array([0, 1, 2, 255, 128], np.uint8).view(bool)
    x = gpu.asarray(host)
    for dtype in (np.int32, np.uint8, np.float32, np.float16, BFLOAT16, np.complex64):
        np.testing.assert_array_equal(x.astype(dtype).get(), host.view(np.uint8) != 0)


def test_a_cast_is_ordered_as_any_kernel(gpu: hearth.Device) -> None:
    x = gpu.zeros(1 << 16, np.float32)
    with gpu.stream() as stream:
        x.fill(3)
        y = x.astype(BFLOAT16)
        x.fill(4)
    stream.synchronize()
    assert (y.get() == 3).all() and (x.get() == 4).all()


# ---- conversions of host objects ----


@pytest.mark.parametrize("value", [[2**70, 1], "abc", [[1, 2], [3]], [1 + 1j, 0], object, None], ids=str)
def test_objects_that_are_no_arrays_are_refused(gpu: hearth.Device, value: Any) -> None:
    x = gpu.ones(2, np.int64)
    uses: list[Callable[[], Any]] = [lambda: x.set(value), lambda: gpu.asarray(value, np.int64)]
    for use in uses:
        with pytest.raises(hearth.DtypeError) as caught:
            use()
        assert caught.value.fix
    assert (x.get() == 1).all()


def test_arrays_like_another_object(gpu: hearth.Device) -> None:
    for value in ([1, 2], [[1.5, 2], [3, 4]], 3, (True, False), memoryview(b"abc")):
        for name in ("zeros_like", "ones_like"):
            made, expected = getattr(gpu, name)(value).get(), getattr(np, name)(value)
            np.testing.assert_array_equal(made, expected)
            assert made.dtype == expected.dtype
        assert gpu.full_like(value, 7, np.int8).get().tolist() == np.full_like(value, 7, np.int8).tolist()
        assert gpu.empty_like(value).shape == np.empty_like(value).shape
    with pytest.raises(hearth.DtypeError, match="cannot be converted"):
        gpu.zeros_like([[1, 2], [3]])


def test_shapes_and_orders_of_axes_are_taken_from_arrays(gpu: hearth.Device) -> None:
    x = gpu.zeros(np.array([2, 3]), np.int32)
    assert x.shape == (2, 3) and gpu.empty(np.array([4], np.uint8)).shape == gpu.ones(np.array(4)).shape == (4,)
    assert x.reshape(np.array([3, -1])).shape == (3, 2) and x.transpose(np.array([1, 0])).shape == (3, 2)
    for wrong in (np.array([2.0, 3.0]), np.array([[2, 3]])):
        with pytest.raises(hearth.DtypeError, match="not integers"):
            gpu.zeros(wrong)
        with pytest.raises(TypeError):
            x.reshape(wrong)


# ---- dtypes of packages, and others ----

PACKAGE = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "int4", "uint4"]
ODD = [np.dtype([("a", "u1"), ("b", "f8")], align=True), np.dtype("M8[us]"), np.dtype("U3"), np.dtype("V7"),
       np.dtype(("f4", (2,)))]  # fmt: skip


@pytest.mark.parametrize("name", PACKAGE)
def test_dtypes_of_ml_dtypes(gpu: hearth.Device, name: str) -> None:
    if not hasattr(ml_dtypes, name):
        pytest.skip(f"ml_dtypes {ml_dtypes.__version__} has no {name}")
    dtype = np.dtype(getattr(ml_dtypes, name))
    host = np.array([0, 1, 2, 4, 1]).astype(dtype)
    x = gpu.asarray(host)
    assert x.dtype == dtype and gpu.zeros(2, name).dtype == dtype
    assert x.get().tobytes() == host.tobytes()
    x[1:3] = 2
    x[0] = dtype.type(4)
    host[1:3], host[0] = 2, 4
    assert x.get().tobytes() == host.tobytes()
    assert gpu.full(3, 2, dtype).get().tobytes() == host[1:2].tobytes() * 3
    x.publish(f"of-{name}")
    try:
        attached = gpu.attach(f"of-{name}")
        assert attached.dtype == dtype and attached.get().tobytes() == host.tobytes()
        assert [each.dtype for each in gpu.published() if each.name == f"of-{name}"] == [dtype]
    finally:
        gpu.unpublish(f"of-{name}")


def test_scalars_of_ml_dtypes_by_value(gpu: hearth.Device) -> None:
    """``__nv_bfloat16`` and a byte between other parameters, at the offsets that C uses."""
    kernel = gpu.RawKernel(
        "#include <cuda_bf16.h>\n"
        'extern "C" __global__ void put(char a, __nv_bfloat16 b, unsigned char c, double d, double2 z, double* out) {'
        " out[0] = a; out[1] = __bfloat162float(b); out[2] = c; out[3] = d; out[4] = z.x; out[5] = z.y; }",
        "put",
    )
    out = gpu.zeros(6)
    byte = ml_dtypes.float8_e5m2(1.5)
    kernel((1,), (1,), (np.int8(-3), ml_dtypes.bfloat16(1.25), byte, 2.5, 3 + 4j, out))
    assert out.get().tolist() == [-3, 1.25, np.asarray(byte).view(np.uint8), 2.5, 3, 4]


@pytest.mark.parametrize("dtype", ODD, ids=str)
def test_other_dtypes_are_bytes_with_a_name(gpu: hearth.Device, dtype: np.dtype) -> None:
    if dtype.subdtype is not None:
        dtype = np.dtype([("x", dtype)])
    host = np.frombuffer(bytes(range(1, 1 + dtype.itemsize)) * 4, np.uint8).view(np.uint8)
    host = np.zeros(4, dtype) if dtype.kind == "U" else host.view(dtype)
    x = gpu.asarray(host)
    assert x.get().tobytes() == host.tobytes()
    x[1:] = x[0].get()
    np.testing.assert_array_equal(x.get(), host[[0] * 4])
    with pytest.raises(hearth.UnsupportedError):
        x.astype(np.float32)


def test_other_byte_orders_are_converted(gpu: hearth.Device) -> None:
    host = np.arange(6, dtype=">f4")
    x = gpu.asarray(host)
    x[:2] = host[4:]
    assert x.dtype == np.float32 and x.get().tolist() == [4, 5, 2, 3, 4, 5]


@pytest.mark.parametrize("dtype", [np.dtype(">f4"), np.dtype("f4", metadata={"unit": "m"})], ids=["order", "metadata"])
def test_arrays_of_such_dtypes_are_cast_and_published(gpu: hearth.Device, dtype: np.dtype) -> None:
    host = np.arange(3, dtype=dtype)
    for x in (gpu.asarray(host), gpu.asarray([0, 1, 2], dtype), gpu.zeros_like(host), gpu.empty(3, dtype)):
        x.set(host)
        assert x.astype("f8").get().tolist() == [0, 1, 2]
        y = gpu.zeros(3, np.int32)
        y[:] = x
        assert y.astype(dtype).get().tolist() == [0, 1, 2]
    name = f"such-{dtype.isnative}"
    x.publish(name)
    try:
        assert gpu.attach(name).dtype == np.float32
    finally:
        gpu.unpublish(name)


def test_dtypes_with_a_shape_are_refused(gpu: hearth.Device) -> None:
    dtype = np.dtype((np.int32, 3))
    makers: list[Callable[[], Any]] = [
        lambda: gpu.zeros(2, dtype),
        lambda: gpu.empty_many([(2, dtype)]),
        lambda: gpu.asarray([1], dtype),
        lambda: gpu.ones(2).astype(dtype),
        lambda: gpu.ones(6).view(dtype),
        lambda: hearth.Out(2, dtype),
    ]
    for make in makers:
        with pytest.raises(hearth.DtypeError, match="has a shape") as caught:
            make()
        assert "use the dtype int32" in caught.value.fix
    assert hearth.empty_pinned(2, dtype).shape == (2, 3)


# ---- operations that are not supported ----


def test_arithmetic_and_ufuncs_are_refused(gpu: hearth.Device) -> None:
    x, host = gpu.ones(3), np.ones(3)
    refused: list[Callable[[], Any]] = [
        lambda: x + 1, lambda: 1 - x, lambda: x * x, lambda: host * x, lambda: x @ x, lambda: -x, lambda: x < 1,
        lambda: x == gpu.ones(3), lambda: x != 0, lambda: x == host, lambda: np.float64(2) * x, lambda: np.add(host, x),
        lambda: np.sin(x), lambda: np.sum(x), lambda: 1 in x, lambda: divmod(x, 2), lambda: operator.iadd(x, 1),
        lambda: pickle.dumps(x), lambda: np.add(host, host, out=x),
    ]  # fmt: skip
    for each in refused:
        with pytest.raises(TypeError) as caught:
            each()
        assert isinstance(caught.value, hearth.UnsupportedTypeError) and "x.get()" in caught.value.fix
    assert x is not None and x != "one" and not operator.eq(x, None) and x in [x, host]
    assert len({x, x, gpu.ones(3)}) == 2
    with pytest.raises(AttributeError, match=r"x\.get\(\)\.sum"):
        x.sum()
    assert not hasattr(x, "__cuda_array_interface__") and not hasattr(x, "nonsense")


def test_copies(gpu: hearth.Device) -> None:
    x = gpu.ones((2, 3))
    for twin in (copy.copy(x), copy.deepcopy(x), copy.deepcopy({"x": x})["x"]):
        x.fill(2)
        assert (twin.get() == 1).all()
        x.fill(1)
