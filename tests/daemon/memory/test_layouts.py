"""Rows and pitches: padded arrays, strided views and 2-D copies have the same results as in NumPy, and change no other
bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hearth
from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.raw import KEEP, Execute, Raw, refused

SCALE = r"""
extern "C" __global__ void scale(char* first, long long pitch, int rows, int columns, float by) {
    int row = blockIdx.x, column = threadIdx.x;
    if (row < rows && column < columns) ((float*)(first + row * pitch))[column] *= by;
}
"""


def noise(shape: Any, dtype: Any = np.uint8, seed: int = 0) -> np.ndarray:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(np.random.default_rng(seed).bytes(size), dtype).reshape(shape).copy()


# ---- padded arrays ----


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "float64", "complex128", "S5", "V12"])
@pytest.mark.parametrize("shape", [(), (5,), (1, 7), (4, 1), (3, 17), (2, 3, 33), (0, 4), (3, 0), (700, 3), (2, 3000)])
def test_padded_array_round_trip(gpu: hearth.Device, shape: tuple[int, ...], dtype: str) -> None:
    host = noise(shape, dtype)
    x = gpu.empty_pitched(shape, dtype)
    assert (x.shape, x.dtype, x.nbytes) == (host.shape, host.dtype, host.nbytes)
    x.set(host)
    assert x.get().tobytes() == host.tobytes() == np.asarray(x).tobytes()
    other = gpu.asarray(host[::-1].copy() if host.ndim else host)
    x.copy_from(other)
    assert x.get().tobytes() == other.get().tobytes() == x.copy().get().tobytes()


def test_rows_start_where_vector_loads_can(gpu: hearth.Device) -> None:
    where = gpu.RawKernel('extern "C" __global__ void where(void* p, size_t* out) { *out = (size_t)p; }', "where")
    out = gpu.zeros(1, np.uint64)
    x = gpu.empty_pitched((5, 100), np.float32)
    assert x.pitch == 512 and x.strides == (512, 4) and not x.flags.c_contiguous
    where((1,), (1,), (x, out))
    first = out.item()
    for row in range(5):
        where((1,), (1,), (x[row], out))
        assert out.item() == first + 512 * row and out.item() % 256 == 0


def test_large_padded_arrays_travel_in_chunks(gpu: hearth.Device) -> None:
    """Chunks of 1 MiB end at any place within rows of 1,234,567 and of 1,003 bytes."""
    for shape in ((5, 1_234_567), (4001, 1003)):
        host = noise(shape, seed=3)
        x = gpu.empty_pitched(shape, np.uint8)
        x.fill(0)
        reports: list[tuple[int, int]] = []
        x.set(host, progress=lambda done, total, into=reports: into.append((done, total)))
        assert reports[-1] == (host.nbytes, host.nbytes)
        np.testing.assert_array_equal(x.get(), host)
        np.testing.assert_array_equal(x[1:4].get(), host[1:4])


def test_a_kernel_is_passed_the_first_element(gpu: hearth.Device) -> None:
    scale = gpu.RawKernel(SCALE, "scale")
    host = noise((6, 40), np.float32).view(np.uint32).astype(np.float32)
    padded = gpu.empty_pitched((6, 40), np.float32)
    padded.set(host)
    scale((6,), (64,), (padded, padded.pitch, np.int32(6), np.int32(40), np.float32(2)))
    np.testing.assert_array_equal(padded.get(), host * 2)
    part = padded[1:4, 10:30]
    scale((3,), (64,), (part, part.pitch, np.int32(3), np.int32(20), np.float32(0.5)))
    expected = host * 2
    expected[1:4, 10:30] *= 0.5
    np.testing.assert_array_equal(padded.get(), expected)


# ---- views ----

CUTS: list[Any] = [
    (slice(None), slice(2, 5)), (slice(1, 4), slice(0, 1)), (slice(None), 3), (..., -1), (2, slice(1, 4)),
    slice(None, None, 2), slice(1, None, 3), (slice(3, 1), slice(2, 4)), (None, slice(None), slice(1, 3)),
]  # fmt: skip


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["contiguous", "padded"])
def test_view_has_exactly_the_selected_elements(gpu: hearth.Device, cut: Any, padded: bool) -> None:
    host = noise((7, 9), np.int32)
    x = gpu.empty_pitched(host.shape, host.dtype) if padded else gpu.empty(host.shape, host.dtype)
    x.set(host)
    view = x[cut]
    like = np.zeros((7, 16 if padded else 9), np.int32)[:, :9]
    assert view.flags.c_contiguous == like[cut].flags.c_contiguous
    assert view.strides == like[cut].strides
    np.testing.assert_array_equal(view.get(), host[cut])
    np.testing.assert_array_equal(view.get(out=np.empty_like(host[cut])), host[cut])
    fresh = noise(view.shape, host.dtype, 1)
    view.set(fresh)
    host[cut] = fresh
    np.testing.assert_array_equal(x.get(), host)
    view.fill(-3)
    host[cut] = -3
    np.testing.assert_array_equal(x.get(), host)
    other = gpu.asarray(fresh)
    view.copy_from(other)
    host[cut] = fresh
    np.testing.assert_array_equal(x.get(), host)
    np.testing.assert_array_equal(view.copy().get(), fresh)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_views_copy_as_numpy_does(gpu: hearth.Device, data: st.DataObject) -> None:
    """Copies a view of one array to a different view, of the same shape, of another array."""
    shape = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6)))

    def side(seed: int) -> tuple[np.ndarray, hearth.DeviceArray, tuple[slice, ...]]:
        whole, cut = [], []
        widened = data.draw(st.sampled_from(["none", "last", "middle", "first"]))
        for name, length in zip(("first", "middle", "last"), shape, strict=True):
            before, behind = data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) if name == widened else (0, 0)
            whole.append(before + length + behind)
            cut.append(slice(before, before + length))
        host = noise(tuple(whole), np.int16, seed)
        padded = widened == "none" and data.draw(st.booleans())
        x = gpu.empty_pitched(host.shape, host.dtype) if padded else gpu.empty(host.shape, host.dtype)
        x.set(host)
        return host, x, tuple(cut)

    to_host, to, to_cut = side(1)
    since_host, since, since_cut = side(2)
    to[to_cut].copy_from(since[since_cut])
    to_host[to_cut] = since_host[since_cut]
    np.testing.assert_array_equal(to.get(), to_host)
    np.testing.assert_array_equal(since.get(), since_host)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 8, 12, 16, 24])
def test_a_fill_of_rows_with_elements_of_any_size(gpu: hearth.Device, size: int) -> None:
    element = np.frombuffer(bytes(range(1, size + 1)), f"V{size}")[0]
    expected = np.zeros((37, 10), f"V{size}")
    x = gpu.asarray(expected)
    x[:, 3:7].fill(element)
    expected[:, 3:7] = element
    assert x.get().tobytes() == expected.tobytes()


def test_tall_and_narrow(gpu: hearth.Device) -> None:
    host = noise((200_000, 5))
    x = gpu.asarray(host)
    np.testing.assert_array_equal(x[:, 1:3].get(), host[:, 1:3])
    np.testing.assert_array_equal(x[:, 4].get(), host[:, 4])
    y = gpu.zeros((200_000, 7), np.uint8)
    y[:, 2:4].copy_from(x[:, 3:5])
    y[:, 6].copy_from(x[:, 0])
    expected = np.zeros((200_000, 7), np.uint8)
    expected[:, 2:4], expected[:, 6] = host[:, 3:5], host[:, 0]
    np.testing.assert_array_equal(y.get(), expected)
    y[:, 1].set(host[:, 2])
    expected[:, 1] = host[:, 2]
    np.testing.assert_array_equal(y.get(), expected)


def test_rows_keep_the_order_of_their_stream(gpu: hearth.Device) -> None:
    x, y = gpu.empty_pitched((300, 700), np.uint8), gpu.empty_pitched((300, 700), np.uint8)
    for value in range(1, 6):
        x.set(np.full((300, 700), value, np.uint8))
        with gpu.stream():
            y.copy_from(x)
        x.fill(0)
        assert (y[:, 100:].get() == value).all() and not x[:, 1:].get().any()


# ---- through plain stubs ----


def rows(width: int, count: int, pitch: int) -> c.Rows:
    return c.Rows(width=width, rows=count, pitch=pitch)


def test_rows_of_single_calls(raw: Raw) -> None:
    buffer = raw.buffer(bytes(40))
    raw.call("Write", c.Write(buffer=buffer, offset=1, data=b"abcdefghi", rows=rows(3, 3, 10)))
    assert raw.read(buffer, 40) == b"\0abc" + bytes(7) + b"def" + bytes(7) + b"ghi" + bytes(16)
    chunks = raw.call("Read", c.Read(buffer=buffer, offset=2, size=4, rows=rows(2, 2, 10)))
    assert b"".join(chunk.data for chunk in chunks) == b"bcef"
    raw.call("Copy", c.Copy(destination=buffer, destination_offset=25, source=buffer, source_offset=1, size=2, rows=2,
                            destination_pitch=5, source_pitch=10))  # fmt: skip
    assert raw.read(buffer, 15, 25) == b"ab" + bytes(3) + b"de" + bytes(8)


def test_rows_to_the_last_byte_and_no_further(stream: Execute) -> None:
    """The buffer has 16 bytes: three rows of 4 bytes, 6 bytes apart, end exactly at its end."""
    fits = c.Write(buffer=KEEP, data=bytes(range(12)), rows=rows(4, 3, 6))
    assert not stream.ask(c.Command(write=fits)).HasField("error")
    read = c.Read(buffer=KEEP, size=12, rows=rows(4, 3, 6))
    assert stream.ask(c.Command(read=read)).read.data == bytes(range(12))
    copy = c.Copy(destination=KEEP, destination_offset=2, source=KEEP, size=2, rows=3, destination_pitch=5,
                  source_pitch=5)  # fmt: skip
    assert not stream.ask(c.Command(copy=copy)).HasField("error")
    for offset, shape in ((1, (4, 3, 6)), (0, (4, 3, 7)), (0, (4, 4, 6)), (17, (1, 1, 1)), (5, (0, 3, 6))):
        width, count, pitch = shape
        size = width * count
        commands = [
            c.Command(write=c.Write(buffer=KEEP, offset=offset, data=bytes(size), rows=rows(*shape))),
            c.Command(read=c.Read(buffer=KEEP, offset=offset, size=size, rows=rows(*shape))),
            c.Command(copy=c.Copy(destination=KEEP, destination_offset=offset, source=9, size=width, rows=count,
                                  destination_pitch=pitch, source_pitch=pitch)),
        ]  # fmt: skip
        stream.batch(c.Command(allocate=c.Allocate(buffer=9, size=64)))
        for command in commands:
            result = stream.ask(command)
            if size:
                refusal = from_status(result.error)
                assert refusal.reason == Reason.OUT_OF_BOUNDS and f"[{offset}.." in refusal.message, command
            else:
                assert not result.HasField("error"), result
        stream.batch(c.Command(free=c.Free(buffers=[9])))
    assert stream.failures() == []


HUGE = [17, 2**32, 2**63 - 1, 2**63, 2**64 - 1]


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.usefixtures("unharmed")
def test_numbers_that_contradict_each_other_or_overflow(raw: Raw, stream: Execute, value: int) -> None:
    read, write, copy = c.Read, c.Write, c.Copy
    commands = [
        c.Command(read=read(buffer=KEEP, size=4, rows=rows(2, 2, value))),
        c.Command(read=read(buffer=KEEP, size=4, rows=rows(value, 2, value))),
        c.Command(read=read(buffer=KEEP, size=4, rows=rows(2, value, 4))),
        c.Command(read=read(buffer=KEEP, size=4, offset=value, rows=rows(2, 2, 4))),
        c.Command(read=read(buffer=KEEP, size=4, rows=rows(2, 2, 1))),
        c.Command(read=read(buffer=KEEP, size=5, rows=rows(2, 2, 4))),
        c.Command(read=read(buffer=KEEP, size=2 + value % 1000, rows=rows(2 + value % 1000, 1, 0), offset=15)),
        c.Command(write=write(buffer=KEEP, data=b"1234", rows=rows(2, 2, value))),
        c.Command(write=write(buffer=KEEP, data=b"1234", rows=rows(value, 2, value))),
        c.Command(write=write(buffer=KEEP, data=b"1234", rows=rows(2, value, 4))),
        c.Command(write=write(buffer=KEEP, data=b"1234", rows=rows(2, 2, 1))),
        c.Command(write=write(buffer=KEEP, data=b"123", rows=rows(2, 2, 4))),
        c.Command(write=write(buffer=KEEP, size=value, transfer=value % 977 + 1, rows=rows(value, 1, 0))),
        c.Command(copy=copy(destination=KEEP, source=KEEP, size=2, rows=value, destination_pitch=4, source_pitch=4)),
        c.Command(copy=copy(destination=KEEP, source=KEEP, size=2, rows=2, destination_pitch=value, source_pitch=4)),
        c.Command(copy=copy(destination=KEEP, source=KEEP, size=2, rows=2, destination_pitch=4, source_pitch=value)),
        c.Command(copy=copy(destination=KEEP, source=KEEP, size=value, rows=2, destination_pitch=4, source_pitch=4)),
        c.Command(copy=copy(destination=KEEP, source=KEEP, source_offset=8, size=2, rows=2, source_pitch=4)),
        c.Command(copy=copy(destination=KEEP, source=KEEP, size=value, rows=value, destination_pitch=value,
                            source_pitch=value)),
    ]  # fmt: skip
    for command in commands:
        refusal = from_status(stream.ask(command).error)
        assert refusal.reason in (Reason.OUT_OF_BOUNDS, Reason.INVALID_ARGUMENT, Reason.MESSAGE_TOO_LARGE), command
        assert refusal.fix and any(character.isdigit() for character in refusal.message)
    bad = c.Copy(destination=KEEP, source=KEEP, size=2, rows=2, destination_pitch=value, source_pitch=value)
    assert refused(raw.call, "Copy", bad).reason in (Reason.OUT_OF_BOUNDS, Reason.INVALID_ARGUMENT)
    wrong = c.Read(buffer=KEEP, size=4, rows=rows(2, 2, value))
    assert refused(raw.call, "Read", wrong).reason == Reason.OUT_OF_BOUNDS
    wrong_write = c.Write(buffer=KEEP, data=b"1234", rows=rows(2, 2, value))
    assert refused(raw.call, "Write", wrong_write).reason == Reason.OUT_OF_BOUNDS
    assert stream.ask(c.Command(read=c.Read(buffer=KEEP, size=16))).read.data == bytes(16)
    assert stream.failures() == []


def test_overlapping_copies_name_both_ranges(stream: Execute) -> None:
    stream.batch(c.Command(allocate=c.Allocate(buffer=9, size=100)))

    def message(**fields: int) -> str:
        result = stream.ask(c.Command(copy=c.Copy(destination=9, source=9, **fields)))
        refusal = from_status(result.error)
        assert refusal.reason == Reason.INVALID_ARGUMENT and refusal.fix
        return refusal.message

    assert "[0..10) and [9..19)" in message(destination_offset=9, size=10)
    assert "[9..19) and [0..10)" in message(source_offset=9, size=10)
    assert "[5..15) and [5..15)" in message(destination_offset=5, source_offset=5, size=10)
    both = message(destination_offset=3, size=4, rows=3, destination_pitch=10, source_pitch=10)
    assert "[0..24) in 3 rows of 4, 10 apart" in both and "[3..27) in 3 rows of 4, 10 apart" in both
    for fields in (
        {"destination_offset": 10, "size": 10},
        {"destination_offset": 4, "size": 4, "rows": 3, "destination_pitch": 10, "source_pitch": 10},
        {"destination_offset": 5, "source_offset": 5, "size": 0},
    ):
        assert not stream.ask(c.Command(copy=c.Copy(destination=9, source=9, **fields))).HasField("error"), fields


def test_empty_transfers_cause_no_driver_calls(daemon: Any, stream: Execute) -> None:
    """Sizes of zero are valid at any offset within the buffer, and cause no call of the driver."""
    copies = ("host_to_device_operations", "device_to_host_operations", "device_to_device_operations", "fills")
    before = [daemon.counter(name, 0) for name in copies]
    for command in (
        c.Command(write=c.Write(buffer=KEEP, offset=16)),
        c.Command(write=c.Write(buffer=KEEP, rows=rows(0, 5, 3))),
        c.Command(write=c.Write(buffer=KEEP, rows=rows(5, 0, 0))),
        c.Command(read=c.Read(buffer=KEEP, offset=16)),
        c.Command(read=c.Read(buffer=KEEP, rows=rows(0, 2**64 - 1, 0))),
        c.Command(copy=c.Copy(destination=KEEP, source=KEEP, destination_offset=16)),
        c.Command(copy=c.Copy(destination=KEEP, source=KEEP, rows=2**64 - 1)),
        c.Command(fill=c.Fill(buffer=KEEP, offset=16, pattern=b"x")),
    ):
        assert not stream.ask(command).HasField("error"), command
    assert [daemon.counter(name, 0) for name in copies] == before
