"""Strided and pitched arrays: indexing and reshaping give NumPy's results, and copies transfer the right bytes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hearth
from hearth.arrays import strided, strided_copy
from hearth_proto import layouts
from hearth_proto.layouts import RowLayout
from tests.support.client.fake_daemon import FakeDaemon

shapes = st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple)


@st.composite
def indexed(draw: st.DrawFn) -> tuple[tuple[int, ...], Any]:
    """Draws a shape and a basic index into it."""
    shape = draw(shapes)
    parts: list[Any] = []
    for length in shape[: draw(st.integers(0, len(shape)))]:
        cut = st.slices(length)
        parts.append(draw(cut | st.integers(-length, length - 1) if length else cut))
    for extra in (None, ...):
        if draw(st.integers(0, 4)) == 0:
            parts.insert(draw(st.integers(0, len(parts))), extra)
    if Ellipsis not in parts:
        parts.append(...)  # makes NumPy return a view even of a single element
    return shape, tuple(parts)


@given(indexed())
def test_an_index_selects_what_numpy_selects(case: tuple[tuple[int, ...], Any]) -> None:
    shape, index = case
    host = np.arange(math.prod(shape), dtype=np.int16).reshape(shape)
    try:
        expected = host[index]
    except IndexError:
        with pytest.raises((IndexError, hearth.UnsupportedError)):
            strided.select(host.shape, layouts.contiguous(shape, 2).strides, index)
        return
    selection = strided.select(host.shape, layouts.contiguous(shape, 2).strides, index)
    assert selection.shape == expected.shape
    if expected.size:
        for have, want, length in zip(selection.strides, expected.strides, expected.shape, strict=True):
            assert have == want or length == 1
        assert selection.offset == expected.__array_interface__["data"][0] - host.__array_interface__["data"][0]


@given(indexed(), st.data())
def test_a_reshape_is_a_view_where_numpy_makes_no_copy(case: tuple[tuple[int, ...], Any], data: st.DataObject) -> None:
    shape, index = case
    try:
        view = np.zeros(shape, np.int32)[index]
    except IndexError:
        return
    view = view.transpose(data.draw(st.permutations(range(view.ndim))))
    if not view.size:
        return
    fresh: list[int] = []
    left = view.size
    while left > 1 and len(fresh) < 3:
        fresh.append(data.draw(st.sampled_from([n for n in range(1, left + 1) if left % n == 0])))
        left //= fresh[-1]
    fresh.append(left)
    expected = view.reshape(fresh)
    strides = strided.reshaped_strides(view.shape, view.strides, 4, fresh)
    if not np.shares_memory(expected, view):
        assert strides is None
    else:
        assert strides is not None
        pairs = zip(strides, expected.strides, fresh, strict=True)
        assert all(have == want or length == 1 for have, want, length in pairs)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_copy_commands_copy_every_byte_once(a: int, b: int, c: int, gap: int, wider: int, swap: bool) -> None:
    """Copies between rows of c bytes and rows of b x c bytes store all bytes of the source, in order, in the
    destination."""
    fine = RowLayout(0, c, a * b, c + gap) if a * b > 1 else RowLayout(0, a * b * c)
    coarse = RowLayout(0, b * c, a, b * c + wider) if a > 1 else RowLayout(0, a * b * c)
    destination, source = (coarse, fine) if swap else (fine, coarse)
    source_bytes = np.arange(source.extent, dtype=np.int64)
    copied_bytes = np.full(destination.extent, -1)
    copies = list(strided.copies_between(destination, source))
    for copy in copies:
        for row in range(copy.rows):
            at, start = (
                copy.destination_offset + row * copy.destination_pitch,
                copy.source_offset + row * copy.source_pitch,
            )
            assert (copied_bytes[at : at + copy.width] == -1).all()
            copied_bytes[at : at + copy.width] = source_bytes[start : start + copy.width]
    np.testing.assert_array_equal(_bytes(copied_bytes, destination), _bytes(source_bytes, source))
    assert len(copies) <= max(1, min(a, b))


def _bytes(memory: np.ndarray, rows: RowLayout) -> np.ndarray:
    starts = rows.offset + np.arange(rows.rows) * rows.pitch
    return np.concatenate([memory[start : start + rows.width] for start in starts])


@given(st.integers(1, 300))
def test_doublings_fill_every_row(rows: int) -> None:
    filled = {0}
    copies = list(strided.doublings(RowLayout(0, 3, rows, 5)))
    for copy in copies:
        assert {copy.source_offset // 5 + row for row in range(copy.rows)} <= filled
        filled |= {copy.destination_offset // 5 + row for row in range(copy.rows)}
    assert filled == set(range(rows)) and len(copies) == (rows - 1).bit_length()


def test_views_are_read_and_written_in_place(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    host = np.arange(5 * 6 * 8, dtype=np.int32).reshape(5, 6, 8)
    x = gpu.asarray(host)
    cuts: list[Any] = [
        (slice(1, 4), slice(2, 5)), (slice(None), 3), (..., slice(2, 7)), (..., 0), (2, slice(None), slice(1, 3)),
        slice(None, None, 2), (slice(4, 1), slice(2, 3)), (1, 2, 3), (None, 2, slice(1, 2)), (slice(0, 5, 4), 5),
    ]  # fmt: skip
    for cut in cuts:
        view, expected = x[cut], host[cut]
        assert (view.shape, view.size, view.nbytes) == (expected.shape, expected.size, expected.nbytes)
        np.testing.assert_array_equal(view.get(), expected)
        np.testing.assert_array_equal(np.asarray(view), expected)
        if expected.size:
            assert view.flags.c_contiguous == expected.flags.c_contiguous
            assert view.flags["F_CONTIGUOUS"] == expected.flags["F_CONTIGUOUS"]
        fresh = -np.arange(expected.size, dtype=np.int32).reshape(expected.shape)
        view.set(fresh)
        host[cut] = fresh
        np.testing.assert_array_equal(x.get(), host)
        view.fill(cut.__hash__() % 1000 if isinstance(cut, tuple) and slice not in map(type, cut) else 7)
        host[cut] = view.get()
        np.testing.assert_array_equal(x.get(), host)
        np.testing.assert_array_equal(view.copy().get(), host[cut])
    assert daemon.count("allocate") == 1 + len(cuts)


def test_views_that_are_no_rows_launch_one_kernel(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    x = gpu.zeros((5, 6, 8), np.int32)
    y = gpu.zeros((8, 6, 5), np.int32)
    for cut in (np.s_[:, :2, :2], np.s_[::2, ..., 0], np.s_[::2, ::2], np.s_[::-1, ::2]):
        assert isinstance(x[cut]._rows, layouts.StrideLayout)
        with pytest.raises(hearth.UnsupportedError, match="rows") as caught:
            x[cut]._as_rows()
        assert caught.value.fix
    gpu.synchronize()
    assert not daemon.records
    y.copy_from(x.T)
    gpu.synchronize()
    assert [record.grid for record in daemon.records] == [(1, 1, 1)]
    y.T.copy_from(y.T)
    gpu.synchronize()
    assert len(daemon.records) == 1


def test_copies_of_equal_order_are_one_command(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    """Copies between views of the same order of axes need no kernel; neither do fills of all bytes."""
    host = np.arange(5 * 6 * 8, dtype=np.int32).reshape(5, 6, 8)
    x, y = gpu.asarray(host), gpu.zeros(host.shape, np.int32)
    y.T.copy_from(x.T)
    np.testing.assert_array_equal(y.get(), host)
    y.transpose(1, 0, 2)[::-1].copy_from(x.transpose(1, 0, 2)[::-1])
    np.testing.assert_array_equal(y.get(), host)
    y.T[:, ::-1].fill(3)
    assert (y.get() == 3).all()
    y[:, :, 2:5].T.fill(4)
    assert (y.get()[:, :, 2:5] == 4).all() and (y.get()[:, :, 5:] == 3).all()
    assert not daemon.records


@given(indexed(), indexed(), st.data())
def test_common_axes_visit_each_pair_once(
    one: tuple[tuple[int, ...], Any], two: tuple[tuple[int, ...], Any], data: st.DataObject
) -> None:
    """The bytes that the axes of a copy name are those that NumPy copies; the run and the unit divide everything."""
    views = []
    for number, (shape, index) in enumerate((one, two)):
        try:
            view = np.arange(math.prod(shape) * 2, dtype=np.uint8).reshape(*shape, 2).view("V2")[..., 0][index]
        except IndexError:
            return
        views.append(view.transpose(data.draw(st.permutations(range(view.ndim)))) if number else view)
    axes = min(view.ndim for view in views)
    if any(not view.size for view in views):
        return
    views = [view[(0,) * (view.ndim - axes)] if view.ndim > axes else view for view in views]
    if views[0].ndim != views[1].ndim:
        return
    common = tuple(slice(min(pair)) for pair in zip(views[0].shape, views[1].shape, strict=True))
    destination, source = (view[(*common, ...)] for view in views)
    axes_of_copy = strided_copy.common_axes(destination.shape, destination.strides, source.strides, 2)
    pairs = {(axes_of_copy.destination_offset, axes_of_copy.source_offset)}
    for axis in axes_of_copy.axes:
        assert axis.destination_stride > 0 and axis.length > 1
        pairs = {
            (a + at * axis.destination_stride, b + at * axis.source_stride)
            for a, b in pairs
            for at in range(axis.length)
        }
    expected = set()
    for index in np.ndindex(destination.shape):
        destination_byte = sum(at * stride for at, stride in zip(index, destination.strides, strict=True))
        source_byte = sum(at * stride for at, stride in zip(index, source.strides, strict=True))
        expected |= {(destination_byte + byte, source_byte + byte) for byte in (0, 1)}
    assert pairs == expected and math.prod(axis.length for axis in axes_of_copy.axes) == len(pairs)
    unit = axes_of_copy.unit(0, 0)
    assert unit in (1, 2, 4, 8, 16) and not any(
        a % unit or b % unit for axis in axes_of_copy.axes[:-1] for a, b in [axis[1:]]
    )
    copy = axes_of_copy.single_copy
    if copy is not None:
        assert copy.width * copy.rows == len(pairs) and (copy.rows == 1 or copy.width <= min(copy[4:]))


def test_pitched_arrays(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    x = gpu.empty_pitched((3, 4, 17), np.float32)
    assert (x.shape, x.pitch, x.strides, x.nbytes) == ((3, 4, 17), 128, (512, 128, 4), 3 * 4 * 17 * 4)
    assert [len(buffer) for buffer in daemon.buffers.values()] in ([], [3 * 4 * 128])
    host = np.random.default_rng(1).random(x.shape).astype(np.float32)
    x.set(host)
    np.testing.assert_array_equal(x.get(), host)
    np.testing.assert_array_equal(x[1, 2:].get(), host[1, 2:])
    np.testing.assert_array_equal(x.reshape(12, 17).get(), host.reshape(12, 17))
    y = gpu.asarray(host * 2)
    x.copy_from(y)
    np.testing.assert_array_equal(x.get(), host * 2)
    y.copy_from(x)
    np.testing.assert_array_equal(y.get(), host * 2)
    x.fill(2.5)
    assert (x.get() == 2.5).all()
    assert gpu.empty_pitched(7, np.int8).pitch == 7 and gpu.empty_pitched((4, 0)).get().shape == (4, 0)
    assert gpu.empty_pitched((2, 64), np.int8).flags.c_contiguous
    assert gpu.empty_pitched(()).shape == ()


def test_copies_within_one_array(gpu: hearth.Device) -> None:
    host = np.arange(40, dtype=np.int16).reshape(5, 8)
    x = gpu.asarray(host)
    x[:, :4].copy_from(x[:, 4:])
    host[:, :4] = host[:, 4:]
    np.testing.assert_array_equal(x.get(), host)
    x[1:3, 2:5].copy_from(x[1:3, 2:5])
    x[:, 1:4].copy_from(x[:, :3])  # these overlap, and are copied through new memory
    host[:, 1:4] = host[:, :3].copy()
    x[:3, :3].copy_from(x[1:4, 2:5])
    host[:3, :3] = host[1:4, 2:5].copy()
    np.testing.assert_array_equal(x.get(), host)


def test_many_arrays_in_one_reservation(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    a, b, empty = gpu.empty_many([((3, 4), np.float32), (5, np.int8), (0, np.int8)])
    for index, array in enumerate((a, b, empty)):
        array.fill(index)
    assert (a.get() == 0).all() and (b.get() == 1).all() and empty.get().shape == (0,)
    assert daemon.count("allocate") == 1 and len(daemon.buffers) == 3
    assert gpu.empty_many([]) == []
    del a, array
    gpu.synchronize()
    assert len(daemon.buffers) == 2
    with pytest.raises(hearth.ArgumentError):
        gpu.empty_many([(3, np.int8), (-1, np.int8)])


def test_windows_are_closed_whatever_happens(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    with pytest.raises(RuntimeError), gpu.persistent_memory():
        raise RuntimeError
    with gpu.persistent_memory(), gpu.persistent_memory():
        gpu.empty(3)
    gpu.synchronize()
    modes = [command.set_allocation_mode.mode for command in daemon.commands if command.HasField("set_allocation_mode")]
    assert modes == [2, 1, 2, 2, 1, 1]


def test_a_window_of_a_lost_generation_needs_no_end(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    with gpu.persistent_memory():
        daemon.lose_on = "sync"
        with pytest.raises(hearth.DeviceLostError):
            gpu.synchronize()
    gpu.synchronize()
    modes = [command.set_allocation_mode.mode for command in daemon.commands if command.HasField("set_allocation_mode")]
    assert modes == [2]
