"""Launches: valid ones run, and the refusal of an invalid one lists everything that is wrong with it."""

from __future__ import annotations

import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.kernels import COMMON, common, saxpy_works
from tests.support.daemon.raw import Raw

PLACES = """
extern "C" __global__ void places(unsigned* out, int n) {
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned at = block * (blockDim.x * blockDim.y * blockDim.z) + thread;
    if (at < n) atomicAdd(out + at, at + 1);
}
"""


@pytest.mark.parametrize(
    ("grid", "block"),
    [
        (1, 1),
        ((7,), (13,)),
        ((2, 3), (4, 5)),
        ((2, 3, 4), (5, 6, 7)),
        ((1, 1, 9), (1, 1, 64)),
        ((3,), (1024,)),
        ([2], [8]),
        (np.int64(3), (np.uint8(2), 2)),
        ((1, 65535), 1),
    ],
)
def test_every_thread_runs_once(gpu: hearth.Device, grid: object, block: object) -> None:
    count = int(np.prod(np.asarray(grid, np.int64)) * np.prod(np.asarray(block, np.int64)))
    out = gpu.zeros(count + 3, np.uint32)
    gpu.RawKernel(PLACES, "places")(grid, block, (out, np.int32(count + 3)))
    np.testing.assert_array_equal(out.get(), np.append(np.arange(1, count + 1), np.zeros(3)))


def test_the_form_with_brackets(gpu: hearth.Device) -> None:
    x = gpu.zeros(8, np.int32)
    add_one = common(gpu, "add_one")
    add_one[1, 8](x, np.int32(8))
    with gpu.stream() as stream:
        pass
    add_one[(2,), (4,), stream](x, np.int32(8))
    add_one[1, 8, stream, 64](x, np.int32(4))
    assert x.get().tolist() == [3] * 4 + [2] * 4
    with pytest.raises(hearth.LaunchError):
        add_one[1](x, np.int32(8))


@pytest.mark.parametrize(
    ("grid", "block", "what"),
    [
        ((1,), (1025,), "1025"),
        ((1,), (32, 33), "1056"),
        ((1,), (1, 1, 65), "block.z is 65"),
        ((1, 65536), (1,), "grid.y is 65536"),
        ((1, 1, 65536), (1,), "grid.z is 65536"),
        ((2**31,), (1,), "grid.x is 2147483648"),
        ((1,), (2**16, 2**16, 1), "block.x is 65536"),
        ((1,), (2**31, 2, 1), "block.x is 2147483648"),
    ],
)
def test_geometry_beyond_the_device_is_refused(gpu: hearth.Device, grid: object, block: object, what: str) -> None:
    x = gpu.full(4, 5, np.int32)
    common(gpu, "add_one")(grid, block, (x, np.int32(4)))
    with pytest.raises(hearth.LaunchError, match=what) as caught:
        gpu.synchronize()
    assert caught.value.reason == "LAUNCH_INVALID" and caught.value.details["kernel"] == "add_one"
    assert x.get().tolist() == [5] * 4


@pytest.mark.parametrize(
    ("grid", "block", "error"),
    [
        ((0,), (1,), hearth.LaunchError),
        ((1,), (0,), hearth.LaunchError),
        ((-1,), (1,), hearth.LaunchError),
        ((2**32,), (1,), hearth.LaunchError),
        ((1, 1, 1, 1), (1,), hearth.LaunchError),
        ((), (1,), hearth.LaunchError),
        ((1.0,), (1,), hearth.LaunchTypeError),
        ((1,), ("1",), hearth.LaunchTypeError),
        ((True,), (1,), hearth.LaunchTypeError),
    ],
)
def test_impossible_geometry_is_refused_by_the_client(
    gpu: hearth.Device, grid: object, block: object, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"grid|block"):
        common(gpu, "add_one")(grid, block, (gpu.zeros(1, np.int32), np.int32(1)))


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((), "0 arguments are given; the kernel has 2"),
        ((np.int32(1),) * 3, "3 arguments are given"),
        ((np.uint64(0), np.int64(1)), "argument 1 has 8 bytes; the kernel's parameter has 4"),
        ((np.uint64(0), 1.5), r"argument 1 has 8 bytes; .* has 4 \(an integer: pass np.int32\(x\) or a Python int\)"),
        ((np.uint64(0), 2**32), "argument 1 is 4294967296; .* from -2147483648 to 2147483647"),
        ((np.int32(0), np.int32(1)), "argument 0 has 4 bytes"),
        ((np.uint64(0), bytes(12)), "argument 1 has 12 bytes"),
    ],
)
def test_arguments_are_checked_against_the_kernel(gpu: hearth.Device, arguments: tuple[object], what: str) -> None:
    common(gpu, "add_one")((1,), (1,), arguments)
    with pytest.raises(hearth.LaunchError, match=what) as caught:
        gpu.synchronize()
    assert " given" not in what or caught.value.fix.startswith("pass 2 arguments, of 8 and 4 bytes"), caught.value.fix
    gpu.synchronize()


def test_all_errors_of_a_launch_are_reported_together(gpu: hearth.Device) -> None:
    common(gpu, "add_one")((1, 70000), (2000,), (np.int32(1),), shared_mem=1 << 30)
    with pytest.raises(hearth.LaunchError) as caught:
        gpu.synchronize()
    message = str(caught.value)
    for part in ("1 argument is given", "grid.y is 70000", "block.x is 2000", "shared memory"):
        assert part in message
    assert int(caught.value.details["failures"]) >= 4
    assert "this launch passes 1 argument, of 4 bytes; launch within these limits" in caught.value.fix


SHARED = """
extern "C" __global__ void turned(int* x) {
    __shared__ int part[256];
    part[threadIdx.x] = x[threadIdx.x]; __syncthreads();
    x[threadIdx.x] = part[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void dynamic(int* x, int words) {
    extern __shared__ int room[];
    for (int i = threadIdx.x; i < words; i += blockDim.x) room[i] = i;
    __syncthreads();
    int sum = 0;
    for (int i = threadIdx.x; i < words; i += blockDim.x) sum += room[words - 1 - i];
    atomicAdd(x, sum);
}
"""


def test_static_shared_memory(gpu: hearth.Device) -> None:
    kernel = gpu.RawKernel(SHARED, "turned")
    assert kernel.shared_size_bytes == 1024
    x = gpu.asarray(np.arange(256, dtype=np.int32))
    kernel((1,), (256,), (x,))
    np.testing.assert_array_equal(x.get(), np.arange(256)[::-1])


@pytest.mark.parametrize("share", ["a little", "the usual most", "the opt-in most"])
def test_dynamic_shared_memory(gpu: hearth.Device, share: str) -> None:
    properties = gpu.properties
    size = {"a little": 400, "the usual most": properties.shared_mem_per_block}.get(
        share, properties.shared_mem_per_block_optin
    )
    words, x = size // 4, gpu.zeros(1, np.int32)
    gpu.RawKernel(SHARED, "dynamic")((1,), (64,), (x, np.int32(words)), shared_mem=size)
    assert x.item() == words * (words - 1) // 2


def test_too_much_shared_memory(gpu: hearth.Device) -> None:
    most = gpu.properties.shared_mem_per_block_optin
    x = gpu.zeros(256, np.int32)
    for name, arguments, size in (("dynamic", (x, np.int32(1)), most + 1), ("turned", (x,), most - 1023)):
        gpu.RawKernel(SHARED, name)((1,), (1,), arguments, shared_mem=size)
        with pytest.raises(hearth.LaunchError, match=f"the device's maximum per block is {most}"):
            gpu.synchronize()
    with pytest.raises(hearth.LaunchError):
        gpu.RawKernel(SHARED, "dynamic")((1,), (1,), (x, np.int32(1)), shared_mem=-1)


def test_arrays_of_other_sessions_are_refused_by_the_client(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    add_one = common(gpu, "add_one")
    with daemon.connect() as other, pytest.raises(hearth.LaunchError, match="another device or session"):
        add_one((1,), (1,), (other.device(0).zeros(1, np.int32), np.int32(1)))
    freed = gpu.zeros(1, np.int32)
    freed.free()
    with pytest.raises(hearth.InvalidHandleError, match="freed") as caught:
        add_one((1,), (1,), (freed, np.int32(1)))
    assert caught.value.details["argument"] == "0"


def test_unknown_handles_in_records(raw: Raw) -> None:
    function, buffer = raw.function(COMMON, "add_one"), raw.buffer(bytes(16))

    def launch(function: int, buffer: int, stream: int = 0) -> c.Command:
        pointer = c.Argument(pointer=c.Argument.Pointer(buffer=buffer))
        dim = c.Dim3(x=1, y=1, z=1)
        arguments = [pointer, c.Argument(int32=4)]
        return c.Command(stream=stream, launch=c.Launch(function=function, grid=dim, block=dim, arguments=arguments))

    with raw.execute() as stream:
        stream.batch(launch(function, buffer), launch(999, buffer), launch(function, 998), launch(function, buffer))
        failures = stream.failures()
        assert ["999" in failures[0].status.message, "998" in failures[1].status.message] == [True, True]
        stream.batch(launch(function, buffer, stream=997))
        (failure,) = stream.failures()
        assert "stream 997" in failure.status.message
    assert np.frombuffer(raw.read(buffer, 16), np.int32)[0] == 2


def test_a_pointer_beyond_its_buffer_is_refused(raw: Raw) -> None:
    function, buffer = raw.function(COMMON, "add_one"), raw.buffer(bytes(16))
    dim = c.Dim3(x=1, y=1, z=1)
    with raw.execute() as stream:
        for offset in (17, 2**63, 2**64 - 1):
            pointer = c.Argument(pointer=c.Argument.Pointer(buffer=buffer, offset=offset))
            launch = c.Launch(function=function, grid=dim, block=dim, arguments=[pointer, c.Argument(int32=0)])
            refusal = from_status(stream.ask(c.Command(launch=launch)).error)
            assert refusal.reason == Reason.OUT_OF_BOUNDS and str(offset) in refusal.message


def test_ten_thousand_launches_in_order(gpu: hearth.Device) -> None:
    mix = common(gpu, "mix")
    x, y = gpu.asarray(np.array([1, 5], np.uint32)), gpu.zeros(2, np.uint32)
    expected = [0, 0]
    for _ in range(10_000):
        mix((1,), (2,), (x, y, np.int32(2)))
        expected = [(3 * value + add) % 2**32 for value, add in zip(expected, (1, 5), strict=True)]
    assert y.get().tolist() == expected


def test_unchecked_mode_computes_the_same(gpu: hearth.Device) -> None:
    x = gpu.zeros(4, np.int32)
    for _ in range(3):
        common(gpu, "add_one")((1,), (4,), (x, np.int32(4)), mode="unchecked")
    assert x.get().tolist() == [3] * 4
    saxpy_works(gpu)
