"""Views of any strides: steps, negative steps, other orders of axes and reshapes give the same as in NumPy, for reads,
writes, fills, copies and casts, and change no other bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hearth
from hearth.arrays import astype, strided_copy
from tests.support.client.internals import memory_of, offset_of
from tests.support.daemon.aio_ways import connect
from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.loops import run

Step = Callable[[Any], Any]
RANDOM = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def noise(shape: Any, dtype: Any = np.int16, seed: int = 0) -> np.ndarray:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(np.random.default_rng(seed).bytes(size), dtype).reshape(shape).copy()


@st.composite
def cut(draw: st.DrawFn, length: int) -> slice:
    """Draws a slice with any step, which mostly selects something."""
    step = draw(st.sampled_from([1, 1, 2, 3, -1, -2, -3]))
    start, stop = draw(st.none() | st.integers(-length, length)), draw(st.none() | st.integers(-length, length))
    return slice(start, stop, step) if draw(st.integers(0, 3)) == 0 else slice(None, None, step)


def split(data: st.DataObject, size: int) -> tuple[int, ...]:
    """Draws a shape with `size` elements."""
    fresh: list[int] = []
    while size > 1 and len(fresh) < 3:
        fresh.append(data.draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0])))
        size //= fresh[-1]
    return (*fresh, size)


def viewed(data: st.DataObject, host: np.ndarray, array: Any, *, reshapes: bool = True) -> tuple[np.ndarray, Any]:
    """Applies the same random steps to a host array and to a device array. Only views result, unless NumPy copies."""
    for _ in range(data.draw(st.integers(1, 3))):
        kinds = ["cut", "cut", "turn", "swap", "move", "axis"] + ["reshape", "ravel"] * reshapes
        kind = data.draw(st.sampled_from(kinds))
        axes = host.ndim
        if kind == "cut":
            index = tuple(data.draw(cut(length)) for length in host.shape[: data.draw(st.integers(0, axes))])
            host, array = host[(*index, ...)], array[(*index, ...)]
        elif kind == "turn":
            order = data.draw(st.permutations(range(axes)))
            host, array = (
                (host.T, array.T) if order == sorted(order) else (host.transpose(order), array.transpose(order))
            )
        elif kind == "swap" and axes:
            pair = data.draw(st.tuples(st.integers(-axes, axes - 1), st.integers(-axes, axes - 1)))
            host, array = host.swapaxes(*pair), array.swapaxes(*pair)
        elif kind == "move" and axes:
            pair = data.draw(st.tuples(st.integers(-axes, axes - 1), st.integers(-axes, axes - 1)))
            host, array = np.moveaxis(host, *pair), array.moveaxis(*pair)
        elif kind == "axis":
            host, array = host[:, None] if axes else host[None], array[:, None] if axes else array[None]
        elif kind == "reshape":
            fresh, order = split(data, host.size) if host.size else (0, 2), data.draw(st.sampled_from("CCFA"))
            host, array = host.reshape(fresh, order=order), array.reshape(fresh, order=order)
        elif kind == "ravel":
            host, array = host.ravel(), array.ravel()
    return host, array


def same_layout(array: Any, host: np.ndarray) -> None:
    assert (array.shape, array.dtype, array.size, array.nbytes) == (host.shape, host.dtype, host.size, host.nbytes)
    if host.size:
        pairs = zip(array.strides, host.strides, host.shape, strict=True)
        assert all(have == want or length == 1 for have, want, length in pairs)
    assert array.flags.c_contiguous == host.flags.c_contiguous
    assert array.flags["F_CONTIGUOUS"] == host.flags.f_contiguous


shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
DTYPES = ["uint8", "int16", "float32", "int64", "complex128", "S3", "V12"]


def test_ravel_copies_elements_that_are_not_contiguous(gpu: hearth.Device) -> None:
    host = np.arange(6, dtype=np.uint8).reshape(2, 3)
    x = gpu.asarray(host)
    for index in (np.s_[:1, ::2], np.s_[0, ::2], np.s_[::-1, 0], np.s_[:, 1:]):
        flat = x[index].ravel()
        assert flat.tolist() == host[index].ravel().tolist()
        assert flat.flags.c_contiguous and memory_of(flat) is not memory_of(x)
    assert memory_of(x.ravel()) is memory_of(x) and memory_of(x[1].ravel()) is memory_of(x)


@RANDOM
@given(data=st.data())
def test_random_views_agree_with_numpy(gpu: hearth.Device, data: st.DataObject) -> None:
    base = noise(data.draw(shapes), data.draw(st.sampled_from(DTYPES)))
    x = gpu.asarray(base)
    host, view = viewed(data, base, x)
    shared = np.shares_memory(host, base)
    assert not host.size or (memory_of(view) is memory_of(x)) == shared
    if shared:
        same_layout(view, host)
    assert view.get().tobytes() == host.tobytes() == view.tobytes()
    assert view.copy().get().tobytes() == host.tobytes() == view.flatten().get().tobytes()
    assert view.copy().flags.c_contiguous
    fresh = noise(host.shape, host.dtype, 1)
    view.set(fresh)
    host[...] = fresh
    assert x.get().tobytes() == base.tobytes() and view.get().tobytes() == host.tobytes()
    element = noise((), host.dtype, 2)[()]
    view.fill(element)
    host[...] = element
    assert x.get().tobytes() == base.tobytes() and view.get().tobytes() == host.tobytes()
    view.copy_from(gpu.asarray(fresh))
    host[...] = fresh
    assert x.get().tobytes() == base.tobytes() and view.get().tobytes() == host.tobytes()
    if host.size:
        at = data.draw(st.integers(0, host.size - 1))
        assert view[np.unravel_index(at, host.shape)].tobytes() == host.flat[at].tobytes()
        assert host.dtype.kind == "V" or view.item(at) == host.item(at)


@RANDOM
@given(data=st.data())
def test_random_views_are_copied_to_random_views(gpu: hearth.Device, data: st.DataObject) -> None:
    """Between two arrays, and within one, where source and destination overlap or not."""
    base, other = noise(data.draw(shapes), np.int32), noise(data.draw(shapes), np.int32, 1)
    x, y = gpu.asarray(base), gpu.asarray(other)
    if data.draw(st.booleans()):
        other, y = base, x
    to_host, to = viewed(data, base, x, reshapes=False)
    since_host, since = viewed(data, other, y, reshapes=False)
    if 0 in (*to_host.shape, *since_host.shape):
        return
    for _ in range(abs(to_host.ndim - since_host.ndim)):
        if to_host.ndim > since_host.ndim:
            to_host, to = to_host[0], to[0]
        else:
            since_host, since = since_host[0], since[0]
    common = (*(slice(min(pair)) for pair in zip(to_host.shape, since_host.shape, strict=True)), ...)
    to[common].copy_from(since[common])
    to_host[common] = since_host[common]
    np.testing.assert_array_equal(x.get(), base)
    np.testing.assert_array_equal(y.get(), other)


@pytest.mark.parametrize("since", ["int8", "float32", "float16"])
def test_a_cast_of_any_view(gpu: hearth.Device, since: str) -> None:
    host = np.arange(60).reshape(3, 4, 5).astype(since)
    x = gpu.asarray(host)
    for view, expected in ((x.T, host.T), (x[::-1, :, ::2], host[::-1, :, ::2]), (x[:, ::2, 1:3], host[:, ::2, 1:3])):
        np.testing.assert_array_equal(view.astype(np.float64).get(), expected.astype(np.float64))
        same = view.astype(since)
        np.testing.assert_array_equal(same.get(), expected)
        assert same.flags.c_contiguous and memory_of(same) is not memory_of(x)


@pytest.mark.parametrize("since", ["int16", "float64", "complex128"])
def test_a_cast_reads_only_aligned_elements(gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch, since: str) -> None:
    read = []

    def run_kernel(device: hearth.Device, source: str, name: str, count: int, args: tuple[Any, ...], on: Any) -> None:
        read.append(args[0])
        strided_copy.run_kernel(device, source, name, count, args, on)

    monkeypatch.setattr(astype, "run_kernel", run_kernel)
    size = np.dtype(since).itemsize
    host = noise((5, 3 * size + 1), np.uint8) % 2
    x = gpu.asarray(host)
    views = [
        (x.ravel()[1 : 1 + 4 * size].view(since), host.ravel()[1 : 1 + 4 * size].view(since)),
        (x[:, : 2 * size].view(since), host[:, : 2 * size].view(since)),  # rows whose distance is odd
        (x[::-1, 1 : 1 + 2 * size].view(since), host[::-1, 1 : 1 + 2 * size].view(since)),
        (x.ravel()[: 4 * size].view(since), host.ravel()[: 4 * size].view(since)),
    ]
    for view, expected in views:
        np.testing.assert_array_equal(view.astype(np.complex64).get(), expected.astype(np.complex64))
    assert len(read) == len(views) and not any(offset_of(array) % size or array.pitch % size for array in read)
    assert memory_of(read[-1]) is memory_of(x)  # an aligned array is not copied


def test_assignment_broadcasts_device_arrays_along_any_axis(gpu: hearth.Device) -> None:
    host = noise((4, 5, 6))
    x = gpu.asarray(host)
    for index, value in (
        (..., host[:, :1]),
        (..., host[:1, :, :1]),
        (slice(None, None, -1), host[..., 2:3]),
        ((slice(None), 2), np.arange(4)[:, None]),
        ((..., slice(None, None, -2)), host[::-1, ::-1, :1].astype(np.float32)),
        ((slice(1, 3), slice(None), slice(0, 0)), np.zeros((2, 5, 1))),
    ):
        device = gpu.asarray(value)
        x[index] = device
        host[index] = value
        np.testing.assert_array_equal(x.get(), host)
    x[...] = x[:, :1]  # the source is part of the destination
    host[...] = host[:, :1].copy()
    np.testing.assert_array_equal(x.get(), host)
    y, square = gpu.asarray(host[:3, :3, 0]), host[:3, :3, 0].copy()
    y[...] = y.T
    square[...] = square.T.copy()
    np.testing.assert_array_equal(y.get(), square)
    with pytest.raises(hearth.ArgumentError, match="broadcast"):
        x[...] = gpu.zeros((5, 5))


def test_an_overlapping_copy_is_as_through_a_copy(gpu: hearth.Device) -> None:
    for dtype in (np.uint8, np.float64):
        host = noise((40, 30), dtype)
        x = gpu.asarray(host)
        for to, since in (
            (np.s_[1:], np.s_[:-1]),
            (np.s_[:-3], np.s_[3:]),
            (np.s_[:, 1:], np.s_[:, :-1]),
            (np.s_[::-1], np.s_[:]),
            (np.s_[:, ::-1], np.s_[:]),
            (np.s_[:20, ::2], np.s_[10:30, 1::2]),
            (np.s_[5:9, 5:9], np.s_[5:9, 5:9]),
        ):
            x[to].copy_from(x[since])
            host[to] = host[since].copy()
            assert x.get().tobytes() == host.tobytes(), (to, since)


def test_a_kernel_is_passed_the_first_element_of_any_view(gpu: hearth.Device) -> None:
    where = gpu.RawKernel('extern "C" __global__ void where(void* p, size_t* out) { *out = (size_t)p; }', "where")
    out = gpu.zeros(1, np.uint64)
    x = gpu.zeros((4, 5, 6), np.int32)
    where((1,), (1,), (x, out))
    start = out.item()
    like = np.zeros((4, 5, 6), np.int32)
    for step in (lambda a: a.T, lambda a: a[::-1], lambda a: a[1:, ::-2, 3:1:-1], lambda a: a.swapaxes(0, 2)[2]):
        where((1,), (1,), (step(x), out))
        first = step(like).__array_interface__["data"][0] - like.__array_interface__["data"][0]
        assert out.item() - start == first
    walk = gpu.RawKernel(
        """extern "C" __global__ void walk(const int* first, long long rows, long long columns, int* out) {
            int row = blockIdx.x, column = threadIdx.x;
            out[row * blockDim.x + column] = *(const int*)((const char*)first + row * rows + column * columns);
        }""",
        "walk",
    )
    host = noise((4, 6), np.int32)
    view = gpu.asarray(host).T[::-1, ::2]
    result = gpu.zeros(view.shape, np.int32)
    walk((6,), (2,), (view, *view.strides, result))
    np.testing.assert_array_equal(result.get(), host.T[::-1, ::2])


def test_large_views_of_every_route(gpu: hearth.Device) -> None:
    host = noise((700, 900, 3))
    x = gpu.asarray(host)
    view, expected = x.transpose(2, 1, 0)[:, ::-1], host.transpose(2, 1, 0)[:, ::-1]
    reports: list[tuple[int, int]] = []
    np.testing.assert_array_equal(view.get(progress=lambda *report: reports.append(report)), expected)
    assert reports[-1] == (expected.nbytes, expected.nbytes)
    out = hearth.empty_pinned(expected.shape, expected.dtype)
    assert view.get(out) is out and (out == expected).all()
    out[...] = 0
    view.get(out, blocking=False)
    gpu.synchronize()
    assert (out == expected).all()
    fresh = noise(expected.shape, seed=1)
    view.set(fresh)
    expected[...] = fresh
    np.testing.assert_array_equal(x.get(), host)
    out[...] = noise(expected.shape, seed=2)
    for _ in range(3):
        view.set(out)
        gpu.synchronize()
    expected[...] = out
    np.testing.assert_array_equal(x.get(), host)
    buffer = bytearray(view.nbytes)
    assert view.readinto(buffer) == view.nbytes and bytes(buffer) == expected.tobytes()
    for got, wanted in zip(gpu.get([view, x[::-1, 5, 0], x.T]), (expected, host[::-1, 5, 0], host.T), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_views_keep_the_order_of_their_stream(gpu: hearth.Device) -> None:
    x, y = gpu.zeros((30, 40), np.int32), gpu.zeros((40, 30), np.int32)
    for value in range(1, 8):
        with gpu.stream():
            x.T.fill(value)
            y[::-1].copy_from(x.T)
            x[::-1, ::2].set(np.zeros((30, 20), np.int32))
            assert (y.T.get() == value).all() and x.get().sum() == value * 600


def test_views_in_a_graph(gpu: hearth.Device) -> None:
    host = noise((6, 8), np.float32).view(np.int32)
    x, y, z = gpu.asarray(host), gpu.zeros((8, 6), np.int32), gpu.zeros((4, 5, 6), np.int32)
    y[::-1].copy_from(x.T)  # the kernel is loaded before it is recorded
    with gpu.graph() as graph:
        y[:, ::-1].copy_from(x.T)
        z[::2, ::2, ::-2].fill(5)
    x.set(host + 1)
    graph.launch(2)
    np.testing.assert_array_equal(y.get()[:, ::-1], host.T + 1)
    expected = np.zeros((4, 5, 6), np.int32)
    expected[::2, ::2, ::-2] = 5
    np.testing.assert_array_equal(z.get(), expected)
    with gpu.graph() as shift:
        x[1:].copy_from(x[:-1])  # the overlap needs a temporary copy, which the graph keeps
    shift.launch()
    np.testing.assert_array_equal(x.get(), np.concatenate([host[:1], host[:-1]]) + 1)


def test_reshape_and_its_relatives(gpu: hearth.Device) -> None:
    host = noise((4, 6, 5))
    x = gpu.asarray(host)
    for step in (
        lambda a: a.T.ravel(), lambda a: a[:, :2].ravel(), lambda a: a.reshape(-1, order="F"),
        lambda a: a.T.reshape(30, 4), lambda a: a[::2].reshape(2, 30), lambda a: a.ravel(order="F"),
        lambda a: a.T.ravel(order="A"), lambda a: a.T.reshape((6, -1), order="A"), lambda a: a[::-1].reshape(4, 30),
        lambda a: a[:, 1:3].reshape(2, 2, 2, 5), lambda a: a.T.flatten(), lambda a: a[..., :0].reshape(0, 3),
    ):  # fmt: skip
        made, expected = step(x), step(host)
        np.testing.assert_array_equal(made.get(), expected)
        shares = memory_of(made) is memory_of(x)
        assert shares == np.shares_memory(expected, host) or not expected.size
    assert memory_of(x.reshape(24, 5, copy=True)) is not memory_of(x)
    assert memory_of(x.reshape(24, 5, copy=False)) is memory_of(x)
    with pytest.raises(hearth.UnsupportedError, match="copy") as caught:
        x.T.reshape(30, 4, copy=False)
    assert caught.value.fix
    for view, expected in ((x, host), (x.T, host.T), (x[::-1, :, ::2], host[::-1, :, ::2])):
        for order in ("C", "F", "A"):
            made, wanted = view.copy(order=order), expected.copy(order=order)
            np.testing.assert_array_equal(made.get(), wanted)
            same_layout(made, wanted)
            flat = view.flatten(order=order)
            np.testing.assert_array_equal(flat.get(), expected.flatten(order=order))
            assert memory_of(made) is not memory_of(x) and memory_of(flat) is not memory_of(x)
    for use in (lambda: x.ravel("K"), lambda: x.copy(order="K"), lambda: x.flatten(order="Z")):
        with pytest.raises(hearth.ArgumentError, match="order"):
            use()
    with pytest.raises(hearth.ArgumentError):
        x.moveaxis((0, 0), (1, 2))
    with pytest.raises(IndexError):
        x.swapaxes(0, 3)
    assert x.moveaxis((0, 2), (-1, 0)).shape == np.moveaxis(host, (0, 2), (-1, 0)).shape
    assert x.T.view(np.int16).shape == (5, 6, 4)
    with pytest.raises(hearth.ArgumentError, match="not contiguous"):
        x.T.view(np.int8)


INNER = [("x", "u8"), ("y", "f8"), ("z", "c8", (2,))]
FIELDS = [("s", "S3"), ("a", "i4"), ("n", INNER), ("v", "f2", (3, 2)), ("c", "u1"), ("t", "i8")]
PATHS = [("s",), ("a",), ("n",), ("n", "x"), ("n", "y"), ("n", "z"), ("v",), ("c",), ("t",)]


@pytest.mark.parametrize("align", [False, True], ids=["packed", "aligned"])
@pytest.mark.parametrize("path", PATHS, ids=".".join)
@pytest.mark.parametrize("step", [lambda a: a, lambda a: a[1:, ::-2], lambda a: a.T, lambda a: a[2, 3]])
def test_fields_are_read_and_written_as_in_numpy(
    gpu: hearth.Device, align: bool, path: tuple[str, ...], step: Step
) -> None:
    """Every write is compared in the whole array, so that it changes no byte of another field, and no padding."""
    dtype = np.dtype([(name, np.dtype(of, align=align), *more) for name, of, *more in FIELDS], align=align)
    host = np.zeros((3, 5), dtype)
    host.view(np.uint8)[:] = np.arange(host.nbytes, dtype=np.uint8).reshape(3, -1) & 63  # no NaN, no large number
    x = gpu.asarray(host)
    expected, view = step(host[...]), step(x)
    if not isinstance(expected, np.ndarray):
        expected = host[2:3, 3:4].reshape(())
    for name in path:
        expected, view = expected[name], view[name]
    assert (view.shape, view.dtype, view.strides) == (expected.shape, expected.dtype, expected.strides)
    assert memory_of(view) is memory_of(x)
    out = np.empty(expected.shape, expected.dtype)
    for got in (view.get(), view.get(out=out), view.copy().get(), gpu.get([x, view])[1]):
        assert got.tobytes() == expected.tobytes()
    if expected.dtype.kind in "iufc":
        assert view.astype(np.float64).get().tobytes() == expected.real.astype(np.float64).tobytes()
    values = expected.copy()
    values.reshape(-1).view(np.uint8)[:] = 7
    one = values.reshape(-1)[0]
    view.set(values)
    expected[...] = values
    assert x.get().tobytes() == host.tobytes()
    for value, same in ((one, one), (np.zeros_like(one), np.zeros_like(one)), (gpu.asarray(values), values)):
        view[...] = value
        expected[...] = same
        assert x.get().tobytes() == host.tobytes()
    view.fill(0)
    expected[...] = 0
    assert x.get().tobytes() == host.tobytes()


def test_fields_are_assigned_and_passed_to_kernels(gpu: hearth.Device) -> None:
    host = np.array([(1, 2.0, (3, 4)), (5, 6.0, (7, 8))], [("a", "i4"), ("b", "f4"), ("n", [("x", "i2"), ("y", "i2")])])
    x = gpu.asarray(host)
    for each in (host, x):
        each["a"] = 5
        each["b"][1:] = [2.5]
        each[0]["n"]["x"] = 9
        each["n"][1] = (1, 2)
    x["a"][1:] = x["a"][:1] = x["n"]["x"][1]  # from the device, with a cast
    host["a"] = 1
    assert x.get().tobytes() == host.tobytes() and x["n"][0]["y"].item() == 4
    add = gpu.RawKernel(
        'extern "C" __global__ void add(char* b, long long step) { *(float*)(b + threadIdx.x * step) += 1; }', "add"
    )
    add((1,), (2,), (x["b"], x["b"].strides[0]))
    host["b"] += 1
    assert x.get().tobytes() == host.tobytes()


def test_indices_that_name_no_field_are_refused(gpu: hearth.Device) -> None:
    x = gpu.zeros(2, [("a", "i4"), ("b", "f4")])
    with pytest.raises(hearth.ArgumentError, match="have no field 'c'") as caught:
        x["c"] = 1
    assert "'a', 'b'" in caught.value.fix
    with pytest.raises(IndexError, match="float64 have no fields"):
        gpu.zeros(2)["a"]
    with pytest.raises(IndexError, match="a separate index"):
        x.reshape(1, 2)[0, "a"]
    with pytest.raises(hearth.UnsupportedError, match="a list of fields") as refused:
        x[["a", "b"]] = 1
    assert "x['name']" in refused.value.fix


def test_operations_without_strides_refuse_them_by_name(node: hearth.Node, gpu: hearth.Device) -> None:
    x = gpu.zeros((4, 6), np.float32)
    group = hearth.Group(node.devices[:1])
    for use, error in (
        (lambda: group.all_reduce([x.T]), hearth.ArgumentError),
        (lambda: gpu.publish("strided", x.T), hearth.ArgumentError),
        (lambda: gpu.zeros((8, 64), np.float32)[::-1].tensor_map((4, 32)), hearth.ArgumentError),
        (lambda: x.T.tensor_map((4, 4)), hearth.ArgumentError),
        (lambda: x[:, [0, 1]], hearth.UnsupportedError),
    ):
        with pytest.raises(error) as caught:
            use()
        assert caught.value.fix


def test_views_of_published_arrays_are_read_only(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    host = noise((3, 4, 5))
    x = gpu.asarray(host)
    x.publish("views")
    with daemon.connect() as other:
        attached = other.device(0).attach("views")
        for array, device in ((x, gpu), (attached, other.device(0))):
            np.testing.assert_array_equal(array.T[::-1].get(), host.T[::-1])
            for view in (array.T, array[::2, ::2, ::-2], array[::-1, ::2], array[1:]):
                for write in (
                    lambda to: to.fill(1),
                    lambda to: to.set(np.zeros(to.shape, to.dtype)),
                    lambda to: to.copy_from(to.copy()),
                    lambda to: to[::-1].copy_from(to),
                ):
                    with pytest.raises(hearth.HearthError, match=r"read-only|is published"):
                        write(view)
                        device.synchronize()
            np.testing.assert_array_equal(array.get(), host)
    gpu.unpublish("views")


def test_exports_of_views(gpu: hearth.Device) -> None:
    if gpu.properties.backend != "cpu":
        pytest.skip("NumPy reads memory of the CPU backend only")
    host = noise((4, 6), np.float32)
    x = gpu.asarray(host)
    for step in (lambda a: a.T, lambda a: a[::-1, ::2], lambda a: a.T[1:3, ::-1]):
        assert np.from_dlpack(step(x)).tobytes() == step(host).tobytes()
        with step(x).ipc() as exported:
            assert np.asarray(exported).tobytes() == step(host).tobytes()


def test_copies_between_devices(pair: list[hearth.Device]) -> None:
    here, there = pair
    host = noise((5, 7), np.float32)
    x, y = here.asarray(host), there.zeros((7, 5), np.float32)
    y[::-1].copy_from(x.T)
    assert y.get()[::-1].tobytes() == host.T.tobytes()


def test_asyncio(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with connect(daemon) as node:
            gpu = node.device(0)
            host = noise((70, 80, 3))
            x = gpu.asarray(host)
            view, expected = x.T[:, ::-1], host.T[:, ::-1]
            assert (await view.get() == expected).all() and (await view.ravel().get() == expected.ravel()).all()
            view.fill(3)
            expected[...] = 3
            fresh = noise(expected.shape, seed=1)
            view[1].set(fresh[1])
            expected[1] = fresh[1]
            view[:, 1:].copy_from(view[:, :-1])
            expected[:, 1:] = expected[:, :-1].copy()
            got, whole = await gpu.get([view, x])
            assert (got == expected).all() and (whole == host).all()
            assert await view[2, 3, 4].item() == expected[2, 3, 4] and await view.tolist() == expected.tolist()

    run(main)
