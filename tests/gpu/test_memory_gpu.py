"""Memory on a real GPU: pitched rows, a host that locks no memory, reuse across streams, persistent windows."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.backend.compiler import Source
from hearthd.device.resources.host_pool import HostPool
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.rig import Rig
from tests.support.gpu.settling import finish

if TYPE_CHECKING:
    from hearthd.device.cuda.server import CudaServer

pytestmark = pytest.mark.gpu

MIB = 1 << 20

SLOW = r"""
extern "C" __global__ void slow(const int* x, int* out, long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
    *out = *x;
}
"""


Command = c.Command


@pytest.fixture
def memory(server: CudaServer, stream: Any) -> Iterator[Callable[[int], int]]:
    """Yields a function that allocates a number of bytes and returns the address; the memory is freed at the end of the
    test."""
    held: list[Any] = []

    def take(size: int) -> int:
        held.append(server.allocate(size, stream))
        return int(held[-1].address)

    yield take
    finish(server, stream)
    for each in held:
        server.free(each, stream)


def put(server: CudaServer, address: int, data: np.ndarray, stream: Any) -> None:
    """Writes the data in pieces that fit into the host pool."""
    flat = np.ascontiguousarray(data).view(np.uint8).ravel()
    for start in range(0, flat.size, 8 * MIB):
        part = flat[start : start + 8 * MIB]
        host = server.allocate_host(part.size)
        host.view[:] = part.tobytes()
        server.upload(address + start, host, 0, part.size, stream)
        finish(server, stream)
        server.free_host(host)


def get(server: CudaServer, address: int, size: int, stream: Any) -> np.ndarray:
    out = np.empty(size, np.uint8)
    for start in range(0, size, 8 * MIB):
        part = min(8 * MIB, size - start)
        host = server.allocate_host(part)
        server.download(host, 0, address + start, part, stream)
        finish(server, stream)
        out[start : start + part] = np.frombuffer(host.view, np.uint8)
        server.free_host(host)
    return out


def noise(size: int, seed: int = 0) -> np.ndarray:
    return np.frombuffer(np.random.default_rng(seed).bytes(size), np.uint8).copy()


def rows_of(flat: np.ndarray, offset: int, width: int, rows: int, pitch: int) -> np.ndarray:
    """Returns a view of the rows within `flat`."""
    return np.ndarray((rows, width), np.uint8, flat, offset, (pitch, 1))


# ---- 2-D copies compared with NumPy ----

SHAPES = [
    (1, 1, 7), (16, 1, 16), (3, 5, 3), (3, 5, 4), (7, 100, 13), (512, 64, 512), (513, 33, 1024), (1000, 1000, 1023),
    (1, 4096, 9), (65_536, 17, 70_001),
]  # fmt: skip


@pytest.mark.parametrize(("width", "rows", "pitch"), SHAPES)
@pytest.mark.parametrize("offset", [0, 5])
def test_rows_up_and_down(
    server: CudaServer, stream: Any, memory: Any, width: int, rows: int, pitch: int, offset: int
) -> None:
    extent = offset + (rows - 1) * pitch + width + 11
    flat = noise(extent)
    address = memory(extent)
    put(server, address, flat, stream)
    fresh = noise(width * rows, 1)
    host = server.allocate_host(width * rows + 3)
    assert host is not None
    host.view[3:] = fresh.tobytes()
    server.upload_rows(address + offset, pitch, host, 3, width, rows, stream)
    finish(server, stream)
    rows_of(flat, offset, width, rows, pitch)[...] = fresh.reshape(rows, width)
    np.testing.assert_array_equal(get(server, address, extent, stream), flat)
    host.view[:] = bytes(width * rows + 3)
    server.download_rows(host, 2, address + offset, pitch, width, rows, stream)
    finish(server, stream)
    assert bytes(host.view[2:-1]) == fresh.tobytes() and bytes(host.view[:2]) == b"\0\0"
    server.free_host(host)


@pytest.mark.parametrize(("width", "rows", "pitch"), SHAPES)
def test_rows_within_the_device(
    server: CudaServer, stream: Any, memory: Any, width: int, rows: int, pitch: int
) -> None:
    for to_pitch, from_pitch in ((pitch, width), (width, pitch), (pitch, pitch + 5)):
        to_size, from_size = (rows - 1) * to_pitch + width, (rows - 1) * from_pitch + width
        target, source = noise(to_size, 2), noise(from_size, 3)
        to, since = memory(to_size), memory(from_size)
        put(server, to, target, stream)
        put(server, since, source, stream)
        server.copy_rows(to, to_pitch, since, from_pitch, width, rows, stream)
        finish(server, stream)
        rows_of(target, 0, width, rows, to_pitch)[...] = rows_of(source, 0, width, rows, from_pitch)
        np.testing.assert_array_equal(get(server, to, to_size, stream), target)


@pytest.mark.parametrize(("width", "rows"), [(1, 3_000_001), (4, 2_500_000)])
def test_tall_copies(server: CudaServer, stream: Any, memory: Any, width: int, rows: int) -> None:
    """More rows than a single 2-D copy is given: upload, copy within the device, and download."""
    pitch = width + 3
    size = (rows - 1) * pitch + width
    data = noise(width * rows)
    first, second = memory(size), memory(size)
    server.fill(first, b"\0", size, stream)
    server.fill(second, b"\0", size, stream)
    host = server.allocate_host(width * rows)
    assert host is not None
    host.view[:] = data.tobytes()
    server.upload_rows(first, pitch, host, 0, width, rows, stream)
    server.copy_rows(second, pitch, first, pitch, width, rows, stream)
    finish(server, stream)
    host.view[:] = bytes(width * rows)
    server.download_rows(host, 0, second, pitch, width, rows, stream)
    finish(server, stream)
    np.testing.assert_array_equal(np.frombuffer(host.view, np.uint8), data)
    got = get(server, second, size, stream)
    np.testing.assert_array_equal(rows_of(got, 0, width, rows, pitch), data.reshape(rows, width))
    assert int(got.sum(dtype=np.int64)) == int(data.sum(dtype=np.int64)), "nothing was written between the rows"
    server.free_host(host)


def test_rows_farther_apart_than_the_greatest_pitch(server: CudaServer, stream: Any, memory: Any) -> None:
    from cupy_backends.cuda.api import runtime

    greatest = runtime.deviceGetAttribute(runtime.cudaDevAttrMaxPitch, 0)
    pitch, width, rows = greatest + 513, 1000, 2
    size = pitch + width
    if server.memory_info().free < 2 * size:
        pytest.skip("not enough free memory for rows 2 GiB apart")
    address = memory(size)
    data = noise(width * rows)
    host = server.allocate_host(width * rows)
    assert host is not None
    host.view[:] = data.tobytes()
    server.upload_rows(address, pitch, host, 0, width, rows, stream)
    finish(server, stream)
    host.view[:] = bytes(width * rows)
    server.download_rows(host, 0, address, pitch, width, rows, stream)
    finish(server, stream)
    assert bytes(host.view) == data.tobytes()
    server.free_host(host)


# ---- ordinary memory ----


def test_copies_of_ordinary_memory_in_both_directions(server: CudaServer, memory: Any) -> None:
    data = noise(3 * MIB + 5)
    address = memory(4 * MIB)
    server.write_now(address, 0, memoryview(data.tobytes()), data.size, 1)  # also from read-only memory
    into = bytearray(data.size)
    server.read_now(memoryview(into), address, 0, data.size, 1)
    assert into == data.tobytes()
    picture = noise(700 * 999, 1)
    server.write_now(address + 3, 1024, memoryview(picture.tobytes()), 700, 999)
    into = bytearray(picture.size)
    server.read_now(memoryview(into), address + 3, 1024, 700, 999)
    assert into == picture.tobytes()


def test_ordinary_memory_waits_for_no_other_stream(server: CudaServer, stream: Any, memory: Any) -> None:
    slow = server.load(server.compiler.compile(Source(SLOW))).function("slow")
    x, out, other = memory(4), memory(4), memory(MIB)
    server.write_now(other, 0, memoryview(bytes(16)), 16, 1)  # makes the allocations of the first use
    cycles = int(server.properties.clock_rate_khz * 400)  # about 0.4 s
    params = bytearray(struct.pack("<QQq", x, out, cycles))
    server.launch(slow, (1, 1, 1), (1, 1, 1), 0, stream, params)
    event = server.record(stream)
    started = time.perf_counter()
    data = noise(MIB).tobytes()
    server.write_now(other, 0, memoryview(data), MIB, 1)
    into = bytearray(MIB)
    server.read_now(memoryview(into), other, 0, MIB, 1)
    took = time.perf_counter() - started
    assert into == data and took < 0.1 and not server.done(event)
    finish(server, stream)
    server.release_event(event)


class Rigs:
    """Device processes of this test, on a host that locks a limited amount of memory."""

    def __init__(self) -> None:
        self._made: list[Any] = []

    def __call__(self, left: int | None = None) -> Any:
        def make(spec: DeviceSpec) -> CudaServer:
            from hearthd.device.cuda import server
            from hearthd.device.cuda.page_locks import PageLocks

            if left is None:
                return server.CudaServer(spec)
            room = left

            def lock(size: int) -> int:
                nonlocal room
                if size > room:
                    raise MemoryError(f"cannot lock {size} bytes")
                room -= size
                return PageLocks(spec.index).allocate(size)

            def host_pool(cap: int, *, on_grown: Callable[[], None], **_: Any) -> HostPool:
                return HostPool(cap, lock=lock, slab=MIB, on_grown=on_grown)

            with pytest.MonkeyPatch.context() as patches:
                patches.setattr(server, "HostPool", host_pool)
                return server.CudaServer(spec)

        self._made.append(Rig(DeviceSpec(0, "cuda", 0, chunk_bytes=300_000), make))
        return self._made[-1]

    def close(self) -> None:
        for rig in self._made:
            rig.close()


@pytest.fixture
def rigs() -> Iterator[Rigs]:
    made = Rigs()
    yield made
    made.close()


def ok(result: c.Result) -> c.Result:
    assert not result.HasField("error"), result.error
    return result


@pytest.mark.parametrize("left", [0, MIB], ids=["none", "one-slab"])
def test_copies_when_the_host_locks_no_further_memory(rigs: Rigs, left: int) -> None:
    rig = rigs(left)
    size = 4 * MIB + 5
    data = noise(size).tobytes()
    ok(rig.call(allocate=c.Allocate(buffer=1, size=size)))
    write = rig.start(write=c.Write(buffer=1, size=size, transfer=7))
    rig.upload(7, data, 250_001)
    ok(rig.answer(write))
    reads = [rig.start(read=c.Read(buffer=1, offset=number, size=400_000)) for number in range(20)]
    for number, read in enumerate(reads):
        assert ok(rig.answer(read)).read.data == data[number : number + 400_000]
    read = rig.start(read=c.Read(buffer=1, size=size, transfer=8))
    assert rig.download(8) == data
    ok(rig.answer(read))
    rows = c.Rows(width=1001, rows=901, pitch=2003)
    picture = noise(1001 * 901, 1).tobytes()
    write = rig.start(write=c.Write(buffer=1, offset=3, size=len(picture), transfer=9, rows=rows))
    rig.upload(9, picture, 77_777)
    ok(rig.answer(write))
    read = rig.start(read=c.Read(buffer=1, offset=3, size=len(picture), transfer=10, rows=rows))
    assert rig.download(10) == picture
    ok(rig.answer(read))
    usage = ok(rig.call(memory_usage=c.MemoryUsage())).memory_usage
    assert usage.bytes_pinned == left and usage.bytes_pinned_in_use == 0


# ---- reuse ----


def launch_slow(rig: Any, x: int, out: int, cycles: int) -> c.Launch:
    dim = c.Dim3(x=1, y=1, z=1)
    arguments = [
        c.Argument(pointer=c.Argument.Pointer(buffer=x, read_only=True)),
        c.Argument(pointer=c.Argument.Pointer(buffer=out)),
        c.Argument(int64=cycles),
    ]
    return c.Launch(function=1, grid=dim, block=dim, arguments=arguments)


def test_freed_memory_is_reused_only_after_its_last_use(rigs: Rigs) -> None:
    """A kernel on stream 0 still reads x when x is freed, and its memory is reused on stream 0; data that stream 1 then
    writes there must not be visible to the kernel."""
    rig = rigs()
    ok(rig.call(load_module=c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=SLOW.encode())))
    ok(rig.call(get_function=c.GetFunction(function=1, module=1, name="slow")))
    ok(rig.call(describe_function=c.DescribeFunction(function=1)))
    ok(rig.call(create_stream=c.CreateStream(stream=1)))
    ok(rig.call(allocate=c.Allocate(buffer=9, size=4)))
    cycles = int(rig.server.properties.clock_rate_khz * 50)  # about 50 ms
    reused = 0
    for number in range(10):
        x, y = 100 + number, 200 + number
        rig.batch(
            Command(allocate=c.Allocate(buffer=x, size=64 * MIB)),
            Command(fill=c.Fill(buffer=x, size=64 * MIB, pattern=struct.pack("<i", number))),
            Command(launch=launch_slow(rig, x, 9, cycles)),
        )
        was = address(rig, x)
        rig.batch(
            Command(free=c.Free(buffers=[x])),
            Command(allocate=c.Allocate(buffer=y, size=64 * MIB)),
            Command(stream=1, fill=c.Fill(buffer=y, size=64 * MIB, pattern=b"\xff" * 4)),
        )
        reused += address(rig, y) == was
        assert struct.unpack("<i", ok(rig.call(read=c.Read(buffer=9, size=4))).read.data) == (number,)
        ok(rig.call(sync=c.Sync(all_streams=True)))
        ok(rig.call(free=c.Free(buffers=[y])))
    assert reused, "the pool never reused recently freed memory: the test proves nothing"


def address(rig: Any, buffer: int) -> int:
    """Returns the address of a buffer of the session, after all earlier commands have been executed."""
    ok(rig.call(memory_usage=c.MemoryUsage()))
    session = rig.process.executor.session(1)
    return int(session.buffers.find(buffer).address)


def test_the_pool_does_not_grow_by_use(rigs: Rigs) -> None:
    """Memory is allocated on changing streams, used on others, and freed while in use: the number of reserved bytes is
    the same in each round."""
    rig = rigs()
    for number in (1, 2, 3):
        ok(rig.call(create_stream=c.CreateStream(stream=number)))
    reserved: list[int] = []
    handle = 100
    for _ in range(12):
        for number in (1, 2, 3):
            a, b = handle, handle + 1
            handle += 2
            rig.batch(
                Command(stream=number, allocate=c.Allocate(buffer=a, size=48 * MIB)),
                Command(stream=number, allocate=c.Allocate(buffer=b, size=48 * MIB)),
                Command(stream=number, fill=c.Fill(buffer=a, size=48 * MIB, pattern=bytes([number]))),
                Command(stream=number % 3 + 1, copy=c.Copy(destination=b, source=a, size=48 * MIB)),
                Command(free=c.Free(buffers=[a])),
            )
            assert ok(rig.call(read=c.Read(buffer=b, offset=MIB, size=3))).read.data == bytes([number]) * 3
            rig.batch(Command(free=c.Free(buffers=[b])))
        ok(rig.call(sync=c.Sync(all_streams=True)))
        reserved.append(ok(rig.call(memory_usage=c.MemoryUsage())).memory_usage.bytes_reserved)
    assert len(set(reserved[2:])) == 1, reserved
    ok(rig.call(memory_cleanup=c.MemoryCleanup()))
    usage = ok(rig.call(memory_usage=c.MemoryUsage())).memory_usage
    assert usage.bytes_reserved < 96 * MIB and usage.bytes_in_use == 0


def test_memory_freed_in_small_blocks_serves_large_ones(rigs: Rigs) -> None:
    """Fragmentation: blocks of one size fill a budget and are freed in random order, then those of another size, and
    then a mix. Where free neighbours were not merged, each larger size would take the budget again: seven times it."""
    rig = rigs()
    chance = np.random.default_rng(5)
    sizes, total = [1, 2, 3, 5, 8, 13, 21], 252  # MiB
    ok(rig.call(allocate=c.Allocate(buffer=1, size=MIB)))
    ok(rig.call(sync=c.Sync(all_streams=True)))
    ok(rig.call(memory_cleanup=c.MemoryCleanup()))
    base = reserved_by(rig)
    peak = base
    handle = 100

    def take(size: int) -> int:
        nonlocal handle
        handle += 1
        pattern = struct.pack("<i", handle)
        rig.batch(
            Command(allocate=c.Allocate(buffer=handle, size=size * MIB)),
            Command(fill=c.Fill(buffer=handle, size=size * MIB, pattern=pattern)),
        )
        return handle

    def drop(block: int, offset: int) -> None:
        """Frees a block that still has its own values: none of it belongs to another block as well."""
        assert ok(rig.call(read=c.Read(buffer=block, offset=offset, size=4))).read.data == struct.pack("<i", block)
        ok(rig.call(free=c.Free(buffers=[block])))

    for turn in range(4):
        for size in sizes if turn == 0 else chance.permutation(sizes).tolist():
            blocks = [take(size) for _ in range(total // size)]
            peak = max(peak, reserved_by(rig))
            for block in chance.permutation(blocks).tolist():
                drop(block, (size - 1) * MIB)
        live: dict[int, int] = {}
        for _ in range(300):
            size = int(chance.choice(sizes))
            while sum(live.values()) + size > total:
                block = int(chance.choice(list(live)))
                drop(block, (live.pop(block) - 1) * MIB)
            live[take(size)] = size
        peak = max(peak, reserved_by(rig))
        ok(rig.call(sync=c.Sync(all_streams=True)))
        usage = ok(rig.call(memory_usage=c.MemoryUsage())).memory_usage
        assert usage.bytes_in_use == MIB * (sum(live.values()) + 1)
        for block, size in live.items():
            drop(block, (size - 1) * MIB)
    print(f"reserved at most {(peak - base) / MIB:.0f} MiB for {total} MiB")
    assert total * MIB <= peak - base + 32 * MIB, "nothing was measured"
    assert peak - base <= 3 * total * MIB
    ok(rig.call(sync=c.Sync(all_streams=True)))
    ok(rig.call(memory_cleanup=c.MemoryCleanup()))
    usage = ok(rig.call(memory_usage=c.MemoryUsage())).memory_usage
    assert usage.bytes_in_use == MIB and usage.bytes_reserved < 96 * MIB


def reserved_by(rig: Any) -> int:
    return int(ok(rig.call(memory_usage=c.MemoryUsage())).memory_usage.bytes_reserved)


def test_persistent_windows(rigs: Rigs) -> None:
    rig = rigs()
    ok(rig.call(create_stream=c.CreateStream(stream=1)))
    ok(rig.call(set_allocation_mode=c.SetAllocationMode(mode=c.ALLOCATION_MODE_PERSISTENT)))
    ok(rig.call(allocate=c.Allocate(buffer=1, size=100 * MIB)))
    ok(rig.call(set_allocation_mode=c.SetAllocationMode(mode=c.ALLOCATION_MODE_AUTO)))
    first = address(rig, 1)
    rig.batch(
        Command(fill=c.Fill(buffer=1, size=100 * MIB, pattern=b"\1")),
        Command(free=c.Free(buffers=[1])),
        Command(stream=1, allocate=c.Allocate(buffer=2, size=100 * MIB)),
        Command(stream=1, fill=c.Fill(buffer=2, size=100 * MIB, pattern=b"\2")),
    )
    assert address(rig, 2) == first
    assert ok(rig.call(read=c.Read(buffer=2, offset=50 * MIB, size=2))).read.data == b"\2\2"
    ok(rig.call(free=c.Free(buffers=[2])))
    usage = ok(rig.call(memory_usage=c.MemoryUsage())).memory_usage
    assert usage.bytes_persistent == 100 * MIB and usage.bytes_in_use == 0
    for _ in range(2):  # the pool counts memory as free when the stream has reached the free
        ok(rig.call(memory_cleanup=c.MemoryCleanup()))
        ok(rig.call(sync=c.Sync(all_streams=True)))
    usage = ok(rig.call(memory_usage=c.MemoryUsage())).memory_usage
    assert usage.bytes_persistent == 0 and usage.bytes_reserved < 100 * MIB


def test_a_refusal_has_the_numbers_of_the_device(server: CudaServer, stream: Any) -> None:
    info = server.memory_info()
    assert info.in_use <= info.reserved and info.free <= info.total
    asked = info.total  # never completely free: the context uses some
    with pytest.raises(Refusal) as caught:
        server.allocate(asked, stream)
    refusal = caught.value
    assert refusal.reason is Reason.OUT_OF_MEMORY
    assert refusal.details["fits"] == "not now" and int(refusal.details["largest"]) < asked


def test_small_host_buffers_do_not_cost_a_page_each(server: CudaServer) -> None:
    buffers = [server.allocate_host(100) for _ in range(2000)]
    assert None not in buffers
    assert len({buffer.address >> 16 for buffer in buffers if buffer}) <= 12
    for buffer in buffers:
        server.free_host(buffer)
