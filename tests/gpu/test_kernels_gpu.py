"""CudaServer on a real GPU: compiled modules, launches, and kernels that fault."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Image, Source
from tests.support.gpu.server_calls import build, finish, get, put

if TYPE_CHECKING:
    from hearthd.device.cuda.launch import CudaFunction
    from hearthd.device.cuda.memory import CudaMemory
    from hearthd.device.cuda.server import CudaServer
    from hearthd.device.cuda.streams import Stream


pytestmark = pytest.mark.gpu

SAXPY = r"""
extern "C" __global__ void saxpy(float a, const float* x, float* y, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""


# compiling and loading


def test_compile_errors_carry_the_log(server: CudaServer) -> None:
    with pytest.raises(Refusal) as caught:
        server.compiler.compile(Source('extern "C" __global__ void k(float* x) {\n  x[0] = nothing;\n}'))
    refusal = caught.value
    assert refusal.reason is Reason.COMPILE_FAILED
    assert refusal.message.startswith("kernel.cu(2): error") and "nothing" in refusal.message
    assert "kernel.cu(2)" in refusal.details["log"] and refusal.fix


@pytest.mark.parametrize("option", ["--pre-include=/etc/passwd", "-D", "/etc"])
def test_options_that_reach_the_host_are_refused(server: CudaServer, option: str) -> None:
    with pytest.raises(Refusal) as caught:
        server.compiler.compile(Source("", options=(option,)))
    assert caught.value.reason is Reason.COMPILE_FAILED
    assert option in caught.value.message and "-maxrregcount" in caught.value.message


@pytest.mark.parametrize("option", ["-I/etc", "--include-path=/etc"])
def test_ignored_include_folders_are_not_read(server: CudaServer, option: str) -> None:
    server.compiler.compile(Source('extern "C" __global__ void f() {}', options=(option, "-arch=sm_70")))
    with pytest.raises(Refusal) as caught:
        server.compiler.compile(Source('#include <passwd>\nextern "C" __global__ void f() {}', options=(option,)))
    assert caught.value.reason is Reason.COMPILE_FAILED
    assert "cannot open source file" in caught.value.message and "passwd" in caught.value.message


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
