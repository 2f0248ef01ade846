"""A client that has not imported NumPy: the operations that work without it, and equal results of arrays with and
without it."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hearth
from hearth import aio, dtypes, lazy_numpy
from tests.support.client.internals import dtype_of
from tests.support.daemon.harness import DaemonProcess, environment
from tests.support.daemon.loops import run

PROGRAM = """
import sys
if sys.argv[2] == "blocked":
    sys.modules["numpy"] = None  # to import it is an error
elif sys.argv[2] == "there":
    import numpy

import ctypes, io, mmap
from array import array
import hearth

SOURCE = '''
struct Pair { char tag; double weight; };
extern "C" __global__ void weigh(const float* x, float* y, int n, Pair pair, float more, bool twice) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = (twice ? 2 : 1) * (x[i] * (float)pair.weight + more + pair.tag);
}
__device__ unsigned char bytes_of_it[4];
'''

class Pair(ctypes.Structure):
    _fields_ = [("tag", ctypes.c_char), ("weight", ctypes.c_double)]

with hearth.connect(sys.argv[1], name="plain") as node:
    gpu = node.device(0)
    host = array("f", range(1000))
    x, y = gpu.asarray(host), gpu.zeros((10, 100), "float32")
    host[0] = 9  # it was taken
    module = gpu.RawModule(code=SOURCE)
    weigh = module.get_function("weigh")
    weigh((4,), (256,), (x, y, ctypes.c_int(1000), Pair(b"\\x02", 0.5), ctypes.c_float(1.5), True))
    print(y[3, 7].item(), y.item(307), y[9, 99].tolist(), y[0, :3].tolist(), float(y[0, 0]), bool(y[0, 0]))
    back = array("f", bytes(4000))
    print(y.readinto(back), back[999], y.tobytes() == back.tobytes(), y.itemsize, y.strides, y.nbytes, y.shape)
    whole = gpu.full(3, 7)
    print(repr(whole), whole.tolist(), int(whole[0]), range(9)[whole[2:].reshape(())], f"{whole[1].item():04d}")
    z = gpu.empty((2, 5), "int16")
    z.fill(-3)
    z[1, 1:3] = z[0, 1:3]
    z[0, 0] = 5
    z[0] = z[0].copy()
    w = z.copy()
    w.set(memoryview(array("h", range(10))).cast("B").cast("h", (2, 5)))
    w.copy_from(w.copy())
    print(z.tolist(), w.tolist(), w.reshape(5, 2).tolist(), w.view("uint8").shape, gpu.empty_like(y).shape)
    flags = gpu.asarray(bytearray(b"\\0\\1\\2"))
    print(flags.tolist(), flags.view(bool).shape, gpu.zeros((0, 3), int).tolist(), gpu.ones(2).tolist())
    with mmap.mmap(-1, 4000) as mapped:
        y.readinto(mapped)
        print(mapped[:4000] == back.tobytes(), gpu.asarray(mapped).nbytes)
    variable = module.get_global("bytes_of_it")
    print(variable.tobytes(), variable.shape)
    with gpu.stream() as stream:
        x.copy_from(x.copy())
        weigh[4, 256](x, y, ctypes.c_int32(1000), Pair(b"\\0", 1.0), ctypes.c_float(0), ctypes.c_bool(False))
    stream.synchronize()
    print(y[0, 5].item())
    for wrong in (lambda: y.readinto(bytes(4000)), lambda: y.readinto(bytearray(3)), lambda: y.readinto(3),
                  lambda: weigh((4,), (256,), (x, y, ctypes.c_void_p(3), Pair(), 1.0, True)),
                  lambda: weigh((4,), (256,), (x, y, "text", Pair(), 1.0, True)),
                  lambda: gpu.zeros(-1, "int8"), lambda: gpu.empty((1 << 62, 4), "int8"),
                  lambda: weigh((0,), (1,), ())):
        try:
            wrong()
            print("nothing was wrong")
        except hearth.HearthError as error:
            print(type(error).__name__, error.reason)
    print(sys.modules.get("numpy") is None, sys.argv[2])
    if sys.argv[2] != "blocked":  # NumPy may come into it: by shared memory it copies them
        big = array("d", range(300_000))
        up = gpu.asarray(big)
        again = array("d", bytes(len(big) * 8))
        up.readinto(again)
        print(again == big, up[123_456].item())
"""


def said(daemon: DaemonProcess, numpy: str, target: str | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, target or daemon.unix, numpy], capture_output=True, text=True,
        env=environment(), timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_a_client_computes_where_numpy_cannot_be_imported(daemon: DaemonProcess) -> None:
    lines = said(daemon, "blocked").splitlines()
    assert lines[0] == "314.0 314.0 1006.0 [7.0, 8.0, 9.0] 7.0 True"  # 2 * (0.5 * x + 1.5 + 2)
    assert "nothing was wrong" not in lines and lines[-1] == "True blocked"


def test_output_is_the_same_with_and_without_numpy(daemon: DaemonProcess) -> None:
    blocked, there = said(daemon, "blocked").splitlines(), said(daemon, "there").splitlines()
    assert blocked[:-1] == there[:-2] and there[-2:] == ["False there", "True 123456.0"]


@pytest.mark.parametrize("way", ["unix", "grpc"])
def test_numpy_is_not_imported_unless_needed(daemon: DaemonProcess, way: str) -> None:
    assert said(daemon, "as it is", getattr(daemon, way)).splitlines()[-2:] == ["True as it is", "True 123456.0"]


# ---- the same arrays with and without NumPy ----

TYPES = ["bool", "int8", "uint16", "int32", "int64", "uint64", "float32", "float64"]
SMALL = st.integers(-3, 300)
NUMBERS = st.one_of(SMALL, st.floats(-4, 300, width=32), st.booleans(), st.just(10**30), st.just(np.float32(2.5)))


def held(values: list[Any], name: str) -> Any:
    """Returns the values in a memoryview, which needs no NumPy."""
    found = dtypes.named(name)
    assert found is not None
    data = np.asarray(values).astype(name).tobytes()
    return memoryview(data).cast(found.code)


def put(x: hearth.DeviceArray, values: Any) -> None:
    x[...] = values


Step = Callable[[hearth.DeviceArray, hearth.DeviceArray], Any]
"""An operation on an array, and on another array of the same type that was created the other way."""

STEPS: st.SearchStrategy[tuple[str, Step]] = st.one_of(
    st.sampled_from([
        ("get", lambda x, _: (x.get().tolist(), str(x.get().dtype))),
        ("tolist", lambda x, _: x.tolist()),
        ("tobytes", lambda x, _: x.tobytes()),
        ("numbers", lambda x, _: [float(each) for each in x.ravel()] + [bool(each) for each in x.ravel()]),
        ("index", lambda x, _: range(1000)[x[(0,) * x.ndim]]),
        ("format", lambda x, _: f"{x[(0,) * x.ndim]:.1f}"),
        ("shape", lambda x, _: (x.shape, x.strides, x.itemsize, x.nbytes, x.size, x.flags.c_contiguous, repr(x))),
        ("dtype", lambda x, _: x.dtype),
        ("astype", lambda x, _: x.astype("float64").tolist()),
        ("copy", lambda x, _: copy.copy(x).tolist()),
        ("copy_from", lambda x, y: x.copy_from(y.reshape(x.shape))),
        ("assign", put),
        ("asarray", lambda x, y: x.device.asarray(x, y.dtype) is x),
        ("array", lambda x, y: x.device.array(y).tolist()),
        ("out", lambda x, _: x.get(out=np.zeros(x.shape, x.dtype)).tolist()),
        ("view", lambda x, _: x.view("uint8").tolist()),
        ("other view", lambda x, _: x.view("float64").shape),
        ("like", lambda x, _: repr(x.device.zeros_like(x)) + repr(x.device.empty_like(x, "int8"))),
        ("transposed", lambda x, _: x.T.tolist()),
        ("other type", lambda x, _: x.set(np.zeros(x.shape, np.complex64))),
        ("other shape", lambda x, _: x.set(array("f", [1, 2, 3, 4, 5, 6, 7]))),
        ("too small", lambda x, _: x.readinto(bytearray(1))),
    ]),
    st.tuples(st.just("item"), st.integers(-9, 9).map(lambda at: lambda x, _: x.item(at))),
    st.tuples(st.just("row"), st.integers(-4, 4).map(lambda at: lambda x, _: x[at].tolist())),
    st.tuples(st.just("fill"), NUMBERS.map(lambda value: lambda x, _: x.fill(value))),
    st.tuples(st.just("full"), NUMBERS.map(lambda value: lambda x, _: x.device.full_like(x, value).tolist())),
    st.tuples(st.just("value"), NUMBERS.map(lambda value: lambda x, _: x.device.full(2, value).tolist())),
    st.tuples(st.just("put"), NUMBERS.map(lambda value: lambda x, _: put(x, value))),
    st.tuples(st.just("list"), st.lists(SMALL, max_size=3).map(lambda values: lambda x, _: put(x, values))),
    st.tuples(st.just("set"), st.lists(SMALL, min_size=12, max_size=12).map(
        lambda values: lambda x, _: x.set(
            memoryview(held(values, str(x.dtype)).cast("B")).cast(dtypes.named(str(x.dtype)).code, x.shape)  # type: ignore[union-attr,call-overload]
        )
    )),
)  # fmt: skip


def outcome(step: Step, x: hearth.DeviceArray, y: hearth.DeviceArray) -> str:
    try:
        with np.errstate(all="ignore"):
            return repr(step(x, y))
    except Exception as error:
        said = re.sub(
            r"\(.*int too .*?\)", "", str(error)
        )  # NumPy's text depends on which of its two int64 types it is
        return f"{type(error).__name__}: {said}"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(TYPES), st.sampled_from([(12,), (3, 4), (2, 2, 3)]), st.data())
def test_array_made_without_numpy_equals_one_made_with_it(
    gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch, name: str, shape: tuple[int, ...], data: st.DataObject
) -> None:
    values, others = (data.draw(st.lists(SMALL, min_size=12, max_size=12)) for _ in range(2))
    buffers = [held(each, name).cast("B").cast(dtypes.named(name).code, shape) for each in (values, others)]  # type: ignore[union-attr]
    with monkeypatch.context() as without:
        without.setattr(lazy_numpy, "is_imported", lambda: False)
        plain, plain_other = (gpu.asarray(each) for each in buffers)
    ours, other = (gpu.asarray(np.asarray(each)) for each in buffers)
    assert isinstance(dtype_of(plain), dtypes.Element) and isinstance(dtype_of(ours), np.dtype)
    for said, step in data.draw(st.lists(STEPS, max_size=8)):
        absent = data.draw(st.booleans())
        with monkeypatch.context() as without:
            if absent:
                without.setattr(lazy_numpy, "is_imported", lambda: False)
            found = outcome(step, plain, other)
        assert found == outcome(step, ours, plain_other), said
    assert (plain.tolist(), plain.dtype) == (ours.tolist(), ours.dtype)


def test_asyncs_arrays_are_read_into_buffers(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_numpy, "is_imported", lambda: False)

    async def main() -> None:
        for target, lanes in ((daemon.unix, True), (daemon.unix, False), (daemon.grpc, True)):
            async with aio.connect(target, lanes=lanes) as node:
                gpu = node.device(0)
                for count in (6, 400_000):
                    host = array("i", range(count))
                    x = gpu.asarray(host)
                    assert isinstance(dtype_of(x), dtypes.Element)
                    back = array("i", bytes(4 * count))
                    assert await x.readinto(back) == 4 * count and back == host
                    assert await x.tobytes() == host.tobytes()
                    assert await x[count - 1].item() == count - 1 and await x.item(2) == 2
                    assert await x[1:3].tolist() == [1, 2]
                    with pytest.raises(hearth.ArgumentError, match="read-only"):
                        await x.readinto(bytes(4 * count))
                assert await gpu.zeros((0, 2), "int8").tolist() == [] and await gpu.zeros(0).tobytes() == b""

    run(main)


@pytest.mark.parametrize("count", [4, 100_000, 2_000_000])
def test_readinto_reads_arrays_of_every_size(gpu: hearth.Device, count: int) -> None:
    """The bytes are received in a batch, through shared memory, or directly into pinned memory."""
    host = np.arange(count, dtype=np.float32)
    x = gpu.asarray(host)
    for _ in range(6):  # repeated, so that the optimised path is used too
        back = bytearray(x.nbytes)
        assert x.readinto(back) == x.nbytes and back == host.tobytes()
    pinned = hearth.empty_pinned(count, np.float32)
    seen: list[tuple[int, int]] = []
    assert x.readinto(pinned, progress=lambda done, total: seen.append((done, total)), timeout=30) == x.nbytes
    assert (pinned == host).all() and seen[-1] == (x.nbytes, x.nbytes)
    strided = x[::2]
    if count == 4:
        half = np.empty(2, np.float32)
        strided.readinto(half)
        assert half.tolist() == [0, 2]


def test_failure_is_raised_by_readinto(node: hearth.Node) -> None:
    gpu = node.device(0)
    x = gpu.zeros(4, "int32")
    x.free()
    with pytest.raises(hearth.InvalidHandleError):
        x.readinto(bytearray(16))
    y = gpu.zeros(4, "int32")
    module = gpu.RawModule(code="this is no C")
    module.get_function("f")((1,), (1,), (y,))
    with pytest.raises(hearth.CompileError):
        y.readinto(bytearray(16))
