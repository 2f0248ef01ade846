"""CudaServer on a real GPU: the properties of each method of ComputeServer that need hardware."""

from __future__ import annotations

import multiprocessing
import os
import random
import struct
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.communicator import CollectiveExchange
from hearthd.device.backend.compiler import Image, Source
from hearthd.device.backend.server import ComputeServer
from hearthd.device.resources.host_pool import HostPool
from hearthd.shared.device_spec import DeviceSpec

if TYPE_CHECKING:
    from hearthd.device.cuda.launch import CudaFunction
    from hearthd.device.cuda.memory import CudaMemory
    from hearthd.device.cuda.server import CudaServer
    from hearthd.device.cuda.streams import Event, Stream

pytestmark = pytest.mark.gpu

SPEC = DeviceSpec(ordinal=0, backend="cuda", index=0)

SAXPY = r"""
extern "C" __global__ void saxpy(float a, const float* x, float* y, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""

SPIN = r"""
extern "C" __global__ void spin(long long cycles, int* flag) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
    if (flag) *flag = 1;
}
"""


def build(server: CudaServer, code: str, name: str, **options: Any) -> CudaFunction:
    return server.load(server.compiler.compile(Source(code, **options))).function(name)


def until(server: CudaServer, event: Event, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not server.done(event):
        assert time.monotonic() < deadline, "the event did not complete"
        time.sleep(0.0002)
    server.release_event(event)


def finish(server: CudaServer, stream: Stream) -> None:
    until(server, server.record(stream))


def put(server: CudaServer, address: int, data: bytes, stream: Stream) -> None:
    host = server.allocate_host(len(data))
    host.view[:] = data
    server.upload(address, host, 0, len(data), stream)
    finish(server, stream)
    server.free_host(host)


def get(server: CudaServer, address: int, size: int, stream: Stream) -> bytes:
    host = server.allocate_host(size)
    server.download(host, 0, address, size, stream)
    finish(server, stream)
    data = bytes(host.view)
    server.free_host(host)
    return data


# the device


def test_it_is_a_compute_server(server: CudaServer) -> None:
    assert isinstance(server, ComputeServer)
    assert server.on_progress(None) is False


# memory


def test_allocate_free_reuse(server: CudaServer, stream: Stream) -> None:
    """A gigabyte is allocated and freed in pieces of 100 kB: the pool does not grow, and counts each byte."""
    before = server.memory_info().in_use
    first = server.allocate(1000, stream)
    assert first.size == 1000 and first.reserved == 1024
    assert first.address % server.properties.memory_alignment == 0
    second = server.allocate(1000, stream)
    assert abs(second.address - first.address) >= 1000
    assert server.memory_info().in_use == before + 2048
    server.free(second, stream)
    server.free(server.allocate(100_000, stream), stream)
    reserved = server.memory_info().reserved
    for _ in range(10_000):
        memory = server.allocate(100_000, stream)
        assert not first.address - 100_000 < memory.address < first.address + 1000, "in use by another"
        server.free(memory, stream)
    assert server.memory_info().reserved == reserved, "freed memory serves the next request"
    assert server.memory_info().in_use == before + 1024
    for memory in (first, second):
        server.free(memory, stream)
        server.free(memory, stream)  # a second time does nothing
    assert server.memory_info().in_use == before


def test_empty_allocation(server: CudaServer, stream: Stream) -> None:
    empty = server.allocate(0, stream)
    assert (empty.address, empty.size, empty.reserved) == (0, 0, 0)
    server.free(empty, stream)
    with pytest.raises(Refusal):
        server.allocate(-1, stream)


def test_memory_is_usable_across_streams_and_after_stream_ordered_free(server: CudaServer) -> None:
    one, two = server.create_stream(), server.create_stream()
    for round_ in range(50):
        memory = server.allocate(1 << 20, one)
        server.fill(memory.address, bytes([round_]), 1 << 20, one)
        event = server.record(one)
        server.wait(two, event)
        assert get(server, memory.address, 1 << 20, two) == bytes([round_]) * (1 << 20)
        server.release_event(event)
        server.free(memory, one)
    server.destroy_stream(one)
    server.destroy_stream(two)


def test_memory_info_and_trim(server: CudaServer, stream: Stream) -> None:
    """Free memory of the device depends on other processes: it is compared with the driver's answers around it."""
    from cupy_backends.cuda.api import runtime

    from hearthd.device.cuda.memory import GRAIN

    size = 256 << 20
    finish(server, stream)
    server.trim()
    before = server.memory_info()
    memory = server.allocate(size, stream)
    free, total = runtime.memGetInfo()
    info = server.memory_info()
    frees = (free, runtime.memGetInfo()[0])
    assert info.total == total and min(frees) <= info.free <= max(frees)
    assert info.in_use == before.in_use + size
    assert size <= info.reserved <= before.reserved + size + GRAIN
    server.free(memory, stream)
    finish(server, stream)
    freed = server.memory_info()
    assert freed.reserved == info.reserved, "kept for the next request"
    assert freed.in_use == before.in_use
    server.trim()
    trimmed = server.memory_info()
    assert trimmed.reserved <= before.reserved + GRAIN, "given back to the device"
    assert trimmed.in_use == before.in_use


def test_out_of_memory_says_what_there_is_and_harms_nothing(server: CudaServer, stream: Stream) -> None:
    total = server.memory_info().total
    with pytest.raises(Refusal) as caught:
        server.allocate(total * 2, stream)
    refusal = caught.value
    assert refusal.reason is Reason.OUT_OF_MEMORY
    assert int(refusal.details["requested"]) == total * 2
    assert int(refusal.details["total"]) == total
    info = server.memory_info()
    assert int(refusal.details["free"]) <= total
    if "PYTEST_XDIST_WORKER" not in os.environ:  # nothing else that is tested uses the device
        assert int(refusal.details["free"]) == pytest.approx(info.free, abs=1 << 30)
    assert int(refusal.details["reserved"]) == info.reserved and refusal.fix
    memory = server.allocate(4096, stream)
    put(server, memory.address, b"x" * 4096, stream)
    assert get(server, memory.address, 4096, stream) == b"x" * 4096
    server.free(memory, stream)


def test_memory_that_another_stream_freed_is_had_again_when_the_device_is_nearly_full(server: CudaServer) -> None:
    """The second stream could not use the memory if each stream had its own arena."""
    one, two = server.create_stream(), server.create_stream()
    server.trim()
    size = int(server.memory_info().free * 0.6)
    memory = server.allocate(size, one)
    server.free(memory, one)
    again = server.allocate(size, two)
    server.free(again, two)
    finish(server, one)
    finish(server, two)
    server.trim()
    server.destroy_stream(one)
    server.destroy_stream(two)


def test_memory_limit() -> None:
    from hearthd.device.cuda.server import CudaServer

    small = CudaServer(DeviceSpec(ordinal=0, backend="cuda", index=0, memory_limit=8 << 20))
    stream = small.create_stream()
    held = small.allocate(5 << 20, stream)
    with pytest.raises(Refusal) as caught:
        small.allocate(5 << 20, stream)
    assert caught.value.reason is Reason.OUT_OF_MEMORY
    assert caught.value.details["limit"] == str(8 << 20)
    small.free(held, stream)
    small.free(small.allocate(8 << 20, stream), stream)
    small.close()
    small.close()


def test_the_pool_for_drivers_without_memory_pools(server: CudaServer, stream: Stream) -> None:
    from hearthd.device.cuda.memory import ArenaPool

    pool = ArenaPool()
    memory = pool.allocate(1 << 20, stream)
    assert memory.address and memory.reserved == 1 << 20
    server.fill(memory.address, b"\x07", 1 << 20, stream)
    assert get(server, memory.address, 16, stream) == b"\x07" * 16
    address = memory.address
    pool.free(memory, stream)
    again = pool.allocate(1 << 20, stream)
    assert again.address == address
    pool.free(again, stream)
    with pytest.raises(Refusal) as caught:
        pool.allocate(server.memory_info().total * 2, stream)
    assert caught.value.reason is Reason.OUT_OF_MEMORY
    pool.trim()
    assert pool.reserved() == 0
    pool.close()


def test_host_buffers_are_writable_and_reused(server: CudaServer) -> None:
    first = server.allocate_host(100_000)
    assert first is not None
    assert first.size == 100_000 and len(first.view) == 100_000 and not first.view.readonly
    first.view[:5] = b"hello"
    address = first.address
    server.free_host(first)
    server.free_host(first)  # a second time does nothing
    second, third = server.allocate_host(90_000), server.allocate_host(90_000)
    assert second is not None and third is not None
    assert second.address == address and third.address != address
    assert bytes(second.view[:5]) == b"hello"
    server.free_host(second)
    server.free_host(third)
    empty = server.allocate_host(0)
    assert empty is not None and empty.size == 0


def test_the_host_pool_grows_beside_the_device_thread() -> None:
    from hearthd.device.cuda.page_locks import PageLocks

    grown = threading.Event()
    pool = HostPool(4 << 20, lock=PageLocks(0).allocate, slab=1 << 20, on_grown=grown.set)
    first = pool.take(1 << 20)
    assert first is not None and pool.take(4096) is None, "nothing is locked on this thread"
    assert grown.wait(10) and pool.grown() and not pool.grown()
    second = pool.take(4096)
    assert second is not None and pool.pinned == 2 << 20
    pool.give(first)
    pool.give(second)


# copies


@pytest.mark.parametrize("size", [0, 1, 3, 4097, 1 << 20, (8 << 20) + 5])
def test_upload_copy_download(server: CudaServer, stream: Stream, size: int) -> None:
    data = random.Random(size).randbytes(size)
    source, target = server.allocate(size, stream), server.allocate(size, stream)
    host = server.allocate_host(size + 16)
    host.view[7 : 7 + size] = data
    server.upload(source.address, host, 7, size, stream)
    server.copy(target.address, source.address, size, stream)
    server.download(host, 9, target.address, size, stream)
    finish(server, stream)
    assert bytes(host.view[9 : 9 + size]) == data
    server.free_host(host)
    server.free(source, stream)
    server.free(target, stream)


PATTERNS = [
    b"\x00", b"\xa5", b"\x01\x02", b"\x03\x03", b"\x01\x02\x03\x04", b"\x01\x02\x01\x02",
    bytes(range(8)), bytes(range(4)) * 2, b"\xff" * 8, bytes(range(16)), bytes(range(8)) * 2, b"\x00" * 16,
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: f"{len(pattern)}-{pattern.hex()[:8]}")
@pytest.mark.parametrize("count", [0, 1, 3, 1001, 100_003])
def test_fill(server: CudaServer, stream: Stream, pattern: bytes, count: int) -> None:
    size = len(pattern) * count
    around = 64
    memory = server.allocate(size + 2 * around, stream)
    server.fill(memory.address, b"\xee", size + 2 * around, stream)
    server.fill(memory.address + around, pattern, size, stream)
    data = get(server, memory.address, size + 2 * around, stream)
    assert data[:around] == data[around + size :] == b"\xee" * around, "nothing beside it is touched"
    assert data[around : around + size] == pattern * count
    server.free(memory, stream)


# streams and events


def test_an_event_is_done_when_its_stream_got_there(server: CudaServer, stream: Stream) -> None:
    spin = build(server, SPIN, "spin")
    finish(server, stream)
    began = time.monotonic()
    server.launch(spin, (1, 1, 1), (1, 1, 1), 0, stream, bytearray(struct.pack("<qQ", 200_000_000, 0)))
    event = server.record(stream)
    assert not server.done(event)
    assert time.monotonic() - began < 0.05, "neither launch, record nor done waits"
    until(server, event)


def test_wait_orders_streams(server: CudaServer) -> None:
    """The reader's stream waits on the device for a writer that takes some time."""
    writer, reader = server.create_stream(), server.create_stream(priority=-1)
    spin = build(server, SPIN, "spin")
    flag, seen = server.allocate(4, writer), server.allocate(4, writer)
    server.fill(flag.address, b"\0", 4, writer)
    server.launch(spin, (1, 1, 1), (1, 1, 1), 0, writer, bytearray(struct.pack("<qQ", 100_000_000, flag.address)))
    written = server.record(writer)
    server.wait(reader, written)
    server.release_event(written)  # released while pending: the wait stands
    for _ in range(20):
        server.release_event(server.record(reader))  # the event is recorded anew
    server.copy(seen.address, flag.address, 4, reader)
    assert get(server, seen.address, 4, reader) == struct.pack("<i", 1)
    server.free(flag, writer)
    server.free(seen, writer)
    server.destroy_stream(writer)
    server.destroy_stream(reader)


MEASURED = r"""
__device__ long long now() {
    long long at;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(at));
    return at;
}
extern "C" __global__ void measured(long long nanoseconds, long long* times) {
    times[0] = now();
    do { times[1] = now(); } while (times[1] - times[0] < nanoseconds);
}
"""


@pytest.mark.parametrize("milliseconds", [2, 40])
def test_elapsed_time(server: CudaServer, stream: Stream, milliseconds: int) -> None:
    """Events around a kernel against the device's own nanosecond timer inside of it."""
    measured = build(server, MEASURED, "measured")
    times = server.allocate(16, stream)
    nanoseconds = milliseconds * 1_000_000
    params = bytearray(struct.pack("<qQ", nanoseconds, times.address))
    server.launch(measured, (1, 1, 1), (1, 1, 1), 0, stream, params)  # what a first launch takes is not measured
    finish(server, stream)
    start = server.record(stream, timing=True)
    server.launch(measured, (1, 1, 1), (1, 1, 1), 0, stream, params)
    end = server.record(stream, timing=True)
    finish(server, stream)
    elapsed = server.elapsed_ns(start, end)
    first, last = struct.unpack("<2q", get(server, times.address, 16, stream))
    assert last - first >= nanoseconds
    # The timer ticks once a microsecond on some devices. The GPU gives time slices to the processes of other tests.
    slices = 50_000_000 if "PYTEST_XDIST_WORKER" in os.environ else 2_000_000
    assert last - first - 5000 <= elapsed <= last - first + slices
    server.free(times, stream)
    server.release_event(start)
    server.release_event(end)


def test_events_without_timing_have_no_time(server: CudaServer, stream: Stream) -> None:
    start, end = server.record(stream), server.record(stream)
    finish(server, stream)
    with pytest.raises(Refusal):
        server.elapsed_ns(start, end)
    finish(server, stream)  # and nothing is broken
    server.release_event(start)
    server.release_event(end)
    server.release_event(end)


def test_a_destroyed_stream_cannot_be_used(server: CudaServer) -> None:
    stream = server.create_stream()
    memory = server.allocate(1 << 20, stream)
    server.fill(memory.address, b"\x11", 1 << 20, stream)
    event = server.record(stream)
    server.free(memory, stream)
    server.destroy_stream(stream)
    server.destroy_stream(stream)
    until(server, event)
    with pytest.raises(AttributeError):
        server.record(stream)


# compiling and loading


def test_compile_errors_carry_the_log(server: CudaServer) -> None:
    with pytest.raises(Refusal) as caught:
        server.compiler.compile(Source('extern "C" __global__ void k(float* x) {\n  x[0] = nothing;\n}'))
    refusal = caught.value
    assert refusal.reason is Reason.COMPILE_FAILED
    assert refusal.message.startswith("kernel.cu(2): error") and "nothing" in refusal.message
    assert "kernel.cu(2)" in refusal.details["log"] and refusal.fix


@pytest.mark.parametrize(
    "option", ["-I/etc", "--include-path=/", "-arch=sm_70", "--pre-include=/etc/passwd", "-D", "/etc"]
)
def test_options_that_reach_the_host_are_refused(server: CudaServer, option: str) -> None:
    with pytest.raises(Refusal) as caught:
        server.compiler.compile(Source("", options=(option,)))
    assert caught.value.reason is Reason.COMPILE_FAILED
    assert option in caught.value.message and "-maxrregcount" in caught.value.message


def test_options_headers_and_identity(server: CudaServer, stream: Stream) -> None:
    code = '#include "mine.h"\nextern "C" __global__ void put(int* out) { out[0] = MINE + YOURS; }'
    function = build(
        server, code, "put", headers=(("mine.h", "#define MINE 40"),), options=("-DYOURS=2", "-std=c++20", "-lineinfo")
    )
    memory = server.allocate(4, stream)
    server.launch(function, (1, 1, 1), (1, 1, 1), 0, stream, bytearray(struct.pack("<Q", memory.address)))
    assert get(server, memory.address, 4, stream) == struct.pack("<i", 42)
    server.free(memory, stream)
    identity = server.compiler.identity()
    assert b"nvrtc" in identity and b"sm_" in identity and identity == server.compiler.identity()


def test_cuda_headers(server: CudaServer) -> None:
    from hearthd.device.cuda.nvrtc import include_folders

    if not include_folders():
        pytest.skip("no CUDA headers on this machine")
    code = r"""
    #include <cuda_fp16.h>
    #include <cooperative_groups.h>
    #include <cuda/std/cstdint>
    extern "C" __global__ void halve(__half* x, cuda::std::uint32_t n) {
        auto block = cooperative_groups::this_thread_block();
        if (block.thread_rank() < n) x[block.thread_rank()] = __hmul(x[block.thread_rank()], __float2half(0.5f));
    }
    """
    assert build(server, code, "halve").parameters == ((0, 8), (8, 4))


def test_name_expressions_and_lists(server: CudaServer, stream: Stream) -> None:
    code = r"""
    template <typename T, int N> __global__ void scale(T* x) { x[threadIdx.x] *= N; }
    __device__ float table[4];
    extern "C" __global__ void plain() {}
    """
    image = server.compiler.compile(Source(code, name_expressions=("scale<float, 3>", "&table", "plain")))
    assert set(image.names) == {"scale<float, 3>", "&table", "plain"}
    module = server.load(image)
    assert {"scale<float, 3>", "plain"} <= set(module.functions)
    assert list(module.globals) == ["table"]
    memory = server.allocate(8, stream)
    put(server, memory.address, struct.pack("<2f", 1.5, 2.0), stream)
    scale = module.function("scale<float, 3>")
    assert module.function("scale<float, 3>") is scale
    server.launch(scale, (1, 1, 1), (2, 1, 1), 0, stream, bytearray(struct.pack("<Q", memory.address)))
    assert struct.unpack("<2f", get(server, memory.address, 8, stream)) == (4.5, 6.0)
    server.free(memory, stream)
    with pytest.raises(Refusal) as caught:
        module.function("scal")
    assert caught.value.reason is Reason.FUNCTION_NOT_FOUND and "plain" in caught.value.message
    server.unload(module)
    server.unload(module)


def test_globals(server: CudaServer, stream: Stream) -> None:
    code = r"""
    __constant__ int factors[3];
    extern "C" { __device__ int counter; }
    extern "C" __global__ void multiply(int* out) { out[threadIdx.x] = factors[threadIdx.x] * 10; counter = 7; }
    """
    module = server.load(server.compiler.compile(Source(code, name_expressions=("&factors",))))
    address, size = module.global_("factors")
    assert size == 12
    assert module.global_("&factors") == (address, 12)
    put(server, address, struct.pack("<3i", 1, 2, 3), stream)
    memory = server.allocate(12, stream)
    server.launch(
        module.function("multiply"), (1, 1, 1), (3, 1, 1), 0, stream, bytearray(struct.pack("<Q", memory.address))
    )
    assert struct.unpack("<3i", get(server, memory.address, 12, stream)) == (10, 20, 30)
    counter, size = module.global_("counter")
    assert size == 4 and get(server, counter, 4, stream) == struct.pack("<i", 7)
    with pytest.raises(Refusal) as caught:
        module.global_("nowhere")
    assert caught.value.reason is Reason.GLOBAL_NOT_FOUND
    server.free(memory, stream)
    server.unload(module)


PTX = b""".version 7.0
.target sm_75
.address_size 64
.visible .entry nothing() { ret; }
"""


def test_ptx_is_loaded_and_bad_code_refused(server: CudaServer, stream: Stream) -> None:
    function = server.load(Image(PTX)).function("nothing")
    assert function.parameters == ()
    server.launch(function, (1, 1, 1), (1, 1, 1), 0, stream, bytearray())
    finish(server, stream)
    with pytest.raises(Refusal) as caught:
        server.load(Image(PTX.replace(b"ret;", b"retreat;")))
    assert caught.value.reason is Reason.MODULE_INVALID
    assert "retreat" in caught.value.details["log"] or "line" in caught.value.details["log"]
    for code in (b"", b"this is no code"):
        with pytest.raises(Refusal) as caught:
            server.load(Image(code))
        assert caught.value.reason is Reason.MODULE_INVALID


# launching


def saxpy_params(a: float, x: CudaMemory, y: CudaMemory, n: int) -> bytearray:
    return bytearray(struct.pack("<f4xQQq", a, x.address, y.address, n))


def assert_attributes_are_the_drivers(function: CudaFunction) -> None:
    from cuda.bindings import driver

    from hearthd.device.cuda.errors import checked

    def attribute(name: str) -> Any:
        kind = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        (value,) = checked(driver.cuFuncGetAttribute(kind, function.pointer))
        return value

    found = function.attributes
    assert (found.registers, found.max_threads_per_block) == (attribute("NUM_REGS"), attribute("MAX_THREADS_PER_BLOCK"))
    assert found.static_shared_bytes == attribute("SHARED_SIZE_BYTES")
    assert found.local_bytes == attribute("LOCAL_SIZE_BYTES")
    assert (found.ptx_version, found.binary_version) == (attribute("PTX_VERSION"), attribute("BINARY_VERSION"))
    assert (found.cache_mode_ca, found.carveout) == (
        attribute("CACHE_MODE_CA"),
        attribute("PREFERRED_SHARED_MEMORY_CARVEOUT"),
    )
    function.prefer_shared(50)
    assert function.attributes.carveout == attribute("PREFERRED_SHARED_MEMORY_CARVEOUT") == 50
    function.prefer_shared(-1)


def test_saxpy(server: CudaServer, stream: Stream) -> None:
    function = build(server, SAXPY, "saxpy")
    assert function.parameters == ((0, 4), (8, 8), (16, 8), (24, 8))
    assert_attributes_are_the_drivers(function)
    n = 10_007
    x, y = server.allocate(4 * n, stream), server.allocate(4 * n, stream)
    put(server, x.address, struct.pack(f"<{n}f", *range(n)), stream)
    server.fill(y.address, struct.pack("<f", 1.0), 4 * n, stream)
    params = saxpy_params(2.0, x, y, n)
    server.launch(function, (-(-n // 256), 1, 1), (256, 1, 1), 0, stream, params)
    params[:] = bytes(len(params))  # may be reused when the call returns
    assert list(struct.unpack(f"<{n}f", get(server, y.address, 4 * n, stream))) == [2.0 * i + 1.0 for i in range(n)]
    server.free(x, stream)
    server.free(y, stream)


def test_structures_by_value_are_one_parameter(server: CudaServer) -> None:
    code = r"""
    struct Large { double values[100]; char tag; };
    extern "C" __global__ void take(char c, Large large, short s, float* out) { *out = large.values[c] + s; }
    """
    assert build(server, code, "take").parameters == ((0, 1), (8, 808), (816, 2), (824, 8))


def test_100_kib_of_dynamic_shared_memory(server: CudaServer, stream: Stream) -> None:
    size = 100 << 10
    if server.properties.shared_mem_per_block_optin < size:
        pytest.skip("the device has less than 100 KiB of shared memory per block")
    code = r"""
    extern "C" __global__ void last(int* out, int n) {
        extern __shared__ int room[];
        for (int i = threadIdx.x; i < n; i += blockDim.x) room[i] = i;
        __syncthreads();
        if (threadIdx.x == 0) out[0] = room[n - 1];
    }
    """
    function = build(server, code, "last")
    memory = server.allocate(4, stream)
    params = bytearray(struct.pack("<Qi", memory.address, size // 4))  # a longer block is refused as out of resources
    for _ in range(2):
        server.launch(function, (1, 1, 1), (128, 1, 1), size, stream, params)
    assert get(server, memory.address, 4, stream) == struct.pack("<i", size // 4 - 1)
    with pytest.raises(Refusal) as caught:
        server.launch(function, (1, 1, 1), (128, 1, 1), 1 << 20, stream, params)
    assert caught.value.reason is Reason.LAUNCH_INVALID and caught.value.details["requested"] == str(1 << 20)
    server.launch(function, (1, 1, 1), (128, 1, 1), 1024, stream, bytearray(struct.pack("<Qi", memory.address, 8)))
    assert get(server, memory.address, 4, stream) == struct.pack("<i", 7)
    server.free(memory, stream)


def test_a_refused_launch_harms_nothing(server: CudaServer, stream: Stream) -> None:
    function = build(server, SAXPY, "saxpy")
    x = server.allocate(4, stream)
    with pytest.raises(Refusal) as caught:
        server.launch(function, (1, 1, 1), (4096, 1, 1), 0, stream, saxpy_params(1, x, x, 1))
    assert caught.value.reason is Reason.LAUNCH_FAILED and "saxpy" in caught.value.message
    with pytest.raises(Refusal) as caught:
        server.launch(function, (-1, 1, 1), (1, 1, 1), 0, stream, saxpy_params(1, x, x, 1))
    assert caught.value.reason is Reason.LAUNCH_INVALID
    with pytest.raises(Refusal) as caught:
        server.launch(function, (1, 1, 1), (1, 1, 1), 0, stream, bytearray(40_000))
    assert caught.value.reason is Reason.LAUNCH_INVALID
    server.fill(x.address, struct.pack("<f", 2.0), 4, stream)
    server.launch(function, (1, 1, 1), (1, 1, 1), 0, stream, saxpy_params(1, x, x, 1))
    assert get(server, x.address, 4, stream) == struct.pack("<f", 4.0)
    server.free(x, stream)


def test_launch_rate(server: CudaServer, stream: Stream, record_property: Any) -> None:
    """Reports a number without a limit: `pytest -rA` shows it."""
    function = build(server, SAXPY, "saxpy")
    x = server.allocate(4, stream)
    params = saxpy_params(1, x, x, 0)
    launch = server.launch
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(500):
            launch(function, (1, 1, 1), (32, 1, 1), 0, stream, params)
        best = min(best, (time.perf_counter() - began) / 500)
        finish(server, stream)
    record_property("launch_us", round(best * 1e6, 2))
    print(f"launch: {best * 1e6:.2f} us")
    server.free(x, stream)


# faults, each in a separate process

FAULT = r"""
import struct, sys, time
from hearthd.device.cuda.server import CudaServer
from hearthd.device.backend.server import DeviceFault
from hearthd.device.backend.compiler import Source
from hearthd.shared.device_spec import DeviceSpec

server = CudaServer(DeviceSpec(ordinal=0, backend="cuda", index=0))
stream = server.create_stream()
module = server.load(server.compiler.compile(Source(sys.argv[1])))
function = module.function("bad")
memory = server.allocate(64, stream)
server.launch(function, (1, 1, 1), (1, 1, 1), 0, stream, bytearray(struct.pack("<Q", 8)))
event = server.record(stream)
calls = {
    "launch": lambda: server.launch(function, (1, 1, 1), (1, 1, 1), 0, stream, bytearray(8)),
    "copy": lambda: server.copy(memory.address, memory.address + 32, 4, stream),
    "record": lambda: server.record(stream),
    "memory_info": server.memory_info,
}
deadline = time.monotonic() + 20
try:
    while not server.done(event) and time.monotonic() < deadline:
        time.sleep(0.001)
except DeviceFault as fault:
    print("done", fault, flush=True)
for name, call in calls.items():
    try:
        call()
    except DeviceFault as fault:
        print(name, fault, flush=True)
server.close()
print("closed")
"""


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("*p = 1;", "illegal address"),
        ("*(int*)((char*)p + 1) = 1;", "address"),
        ("__trap();", "CUDA error 71"),
        ('__assertfail("p", "here", 1, "bad", 1);', "assert"),
    ],
    ids=["illegal address", "misaligned", "trap", "assert"],
)
def test_a_sticky_error_is_a_device_fault(body: str, says: str) -> None:
    code = f'extern "C" __global__ void bad(int* p) {{ {body} }}'
    done = subprocess.run(
        [sys.executable, "-c", FAULT, code], capture_output=True, text=True, timeout=90, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    assert says in said["done"], done.stdout
    assert {"launch", "copy", "record", "memory_info", "closed"} <= set(said), done.stdout


def test_neighbour_of_a_faulted_process_continues(server: CudaServer, stream: Stream) -> None:
    test_a_sticky_error_is_a_device_fault("*p = 1;", "illegal address")
    memory = server.allocate(16, stream)
    server.fill(memory.address, b"\x05", 16, stream)
    assert get(server, memory.address, 16, stream) == b"\x05" * 16
    server.free(memory, stream)


# collectives


def test_what_nccl_cannot_reduce_is_refused_by_name(server: CudaServer) -> None:
    if "nccl" not in server.properties.features:
        pytest.skip("no NCCL on this machine")
    server.communicators.check("all_reduce", "bfloat16", "mean")
    for dtype, op in (("complex64", "sum"), ("bool", "sum"), ("float32", "xor")):
        with pytest.raises(Refusal) as caught:
            server.communicators.check("all_reduce", dtype, op)
        assert caught.value.reason is Reason.UNSUPPORTED
        assert caught.value.details["allowed"].split(", ")[0] in ("int8", "sum")


def test_a_group_of_one(server: CudaServer, stream: Stream) -> None:
    if "nccl" not in server.properties.features:
        pytest.skip("no NCCL on this machine")
    unique = server.communicators.unique_id(1)
    assert len(unique) == 128
    alone = server.communicators.join(unique, 0, 1)
    memory = server.allocate(12, stream)
    put(server, memory.address, struct.pack("<3f", 1, 2, 3), stream)
    alone.enqueue([CollectiveExchange("all_reduce", memory.address, memory.address, 3, "float32", "mean")], stream)
    assert struct.unpack("<3f", get(server, memory.address, 12, stream)) == (1, 2, 3)
    assert alone.failed() == ""
    alone.abort()
    alone.abort()
    assert alone.failed()
    with pytest.raises(Refusal) as caught:
        alone.enqueue([CollectiveExchange("all_reduce", memory.address, memory.address, 3, "float32", "mean")], stream)
    assert caught.value.reason is Reason.COMMUNICATOR_FAILED
    server.free(memory, stream)


COUNT = 1001


def member(rank: int, pipe: Connection, vanish: bool) -> None:
    """Runs one rank of a pair in a separate process."""
    from hearthd.device.cuda.server import CudaServer

    server = CudaServer(DeviceSpec(ordinal=rank, backend="cuda", index=rank))
    if rank == 0:
        pipe.send(server.communicators.unique_id(2))
    unique = pipe.recv()
    communicator = server.communicators.join(unique, rank, 2)
    stream = server.create_stream()
    source, target = server.allocate(4 * COUNT, stream), server.allocate(4 * COUNT, stream)
    server.fill(source.address, struct.pack("<f", rank + 1.0), 4 * COUNT, stream)
    results = {}
    for op in ("sum", "mean", "min", "max", "prod"):
        communicator.enqueue(
            [CollectiveExchange("all_reduce", source.address, target.address, COUNT, "float32", op)], stream
        )
        results[op] = struct.unpack(f"<{COUNT}f", get(server, target.address, 4 * COUNT, stream))
    pipe.send({op: sorted(set(values)) for op, values in results.items()})
    if not vanish:
        pipe.recv()
        communicator.abort()
        server.close()
        return
    if rank == 1:
        os._exit(1)
    pipe.recv()  # the peer is gone
    began = time.monotonic()
    noticed = False
    try:
        communicator.enqueue(
            [CollectiveExchange("all_reduce", source.address, target.address, COUNT, "float32", "sum")], stream
        )
    except Refusal as refusal:  # NCCL saw for itself that the peer is gone
        noticed = refusal.reason is Reason.COMMUNICATOR_FAILED
    enqueued = time.monotonic() - began
    event = server.record(stream)
    time.sleep(0.5)
    stuck = noticed or not server.done(event)
    aborting = threading.Thread(target=communicator.abort)
    aborting.start()
    while not server.done(event) and time.monotonic() - began < 30:
        time.sleep(0.01)
    drained = server.done(event)
    aborting.join(30)
    server.fill(target.address, b"\x01", 4 * COUNT, stream)
    works = get(server, target.address, 4, stream) == b"\x01" * 4
    pipe.send((enqueued, stuck, drained, works, communicator.failed()))
    server.close()


def pair(vanish: bool) -> tuple[list[Any], list[Connection]]:
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(2)]
    processes = [context.Process(target=member, args=(rank, pipes[rank][1], vanish), daemon=True) for rank in range(2)]
    for process in processes:
        process.start()
    ours = [pipe[0] for pipe in pipes]
    assert ours[0].poll(60), "rank 0 gave no unique id"
    unique = ours[0].recv()
    for pipe in ours:
        pipe.send(unique)
    return processes, ours


@pytest.mark.multi_gpu
def test_all_reduce_of_two_processes() -> None:
    processes, pipes = pair(vanish=False)
    for pipe in pipes:
        assert pipe.poll(90), "a rank gave no result"
        assert pipe.recv() == {"sum": [3.0], "mean": [1.5], "min": [1.0], "max": [2.0], "prod": [2.0]}
    for pipe in pipes:
        pipe.send("end")
    for process in processes:
        process.join(30)
        assert process.exitcode == 0


@pytest.mark.multi_gpu
def test_abort_when_the_peer_is_dead() -> None:
    processes, pipes = pair(vanish=True)
    for pipe in pipes:
        assert pipe.poll(90), "a rank gave no result"
        pipe.recv()
    processes[1].join(30)
    assert processes[1].exitcode == 1
    pipes[0].send("gone")
    assert pipes[0].poll(60), "the survivor is stuck"
    enqueued, stuck, drained, works, failure = pipes[0].recv()
    assert enqueued < 1.0, "all_reduce does not wait for the peer on the calling thread"
    assert stuck, "without the peer it cannot end"
    assert drained and works and failure
    processes[0].join(30)
