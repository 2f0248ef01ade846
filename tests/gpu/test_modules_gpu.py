"""Modules on a real GPU: code from compile workers, code that is refused before the driver reads it, and loads during
running kernels."""

from __future__ import annotations

import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Assembly, Image, Source
from hearthd.device.broker.worker_entry import cuda_worker
from hearthd.device.compiler import image_headers
from hearthd.device.compiler.limits import CompileLimits
from hearthd.device.compiler.pool import CompileWorkers

if TYPE_CHECKING:
    from hearthd.device.cuda.server import CudaServer
    from hearthd.device.cuda.streams import Event, Stream

pytestmark = pytest.mark.gpu

PUT = 'extern "C" __global__ void put(int* out) { out[0] = 42; }'
SPIN = r"""
extern "C" __global__ void spin(unsigned long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < nanoseconds);
}
"""
PTX = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry put(.param .u64 p)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [p];
    mov.u32 %r1, 42;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""
SPUN_S = 0.4


@pytest.fixture(scope="module")
def pool(server: CudaServer) -> Iterator[CompileWorkers]:
    made = CompileWorkers(cuda_worker, CompileLimits(60, 4 << 30))
    made.warm()
    made.set_compiler(server.compiler)
    made.ready()
    yield made
    made.close()


def until(server: CudaServer, event: Event, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not server.done(event):
        assert time.monotonic() < deadline, "the event did not complete"
        time.sleep(0.0002)
    server.release_event(event)


def puts(server: CudaServer, image: Image, stream: Stream) -> None:
    """Runs the image's kernel `put`, and checks its result."""
    module = server.load(image)
    memory, host = server.allocate(4, stream), server.allocate_host(4)
    server.launch(module.function("put"), (1, 1, 1), (1, 1, 1), 0, stream, bytearray(struct.pack("<Q", memory.address)))
    server.download(host, 0, memory.address, 4, stream)
    until(server, server.record(stream))
    assert bytes(host.view[:4]) == struct.pack("<i", 42)
    server.free_host(host)
    server.free(memory, stream)
    server.unload(module)


def refused(server: CudaServer, code: bytes) -> Refusal:
    with pytest.raises(Refusal) as caught:
        server.load(Image(code))
    assert caught.value.reason is Reason.MODULE_INVALID and caught.value.fix
    return caught.value


def capability(server: CudaServer) -> tuple[int, int]:
    return server.properties.compute_capability_major, server.properties.compute_capability_minor


def other_architecture(server: CudaServer) -> str:
    """Returns an architecture that NVRTC supports and this device cannot run."""
    return "sm_80" if capability(server)[0] != 8 else "sm_90"


def cubin_for(name: str) -> bytes:
    from hearthd.device.cuda.compiler import CudaCompiler

    number = int(name.removeprefix("sm_"))
    return CudaCompiler(divmod(number, 10), (12, 4)).compile(Source(PUT)).code


def test_source_compiled_by_a_worker_runs(server: CudaServer, pool: CompileWorkers, stream: Stream) -> None:
    image = pool.run(Source(PUT))
    major, minor = capability(server)
    assert image_headers.read_cubin(image.code).architecture == 10 * major + minor
    puts(server, image, stream)


MIXED = """
struct S { int a; };
template <typename T> __global__ void typed(T a, T* out) { *out = a; }
__global__ void plain(unsigned a, int b, unsigned* out) { *out = a + b; }
extern "C" __global__ void mixed(bool b, short s, unsigned u, long long l, float f, double d, S st, int* out) {
    *out = s;
}
"""


def test_loaded_functions_have_the_kinds_of_their_parameters(server: CudaServer, pool: CompileWorkers) -> None:
    image = pool.run(Source(MIXED, name_expressions=("typed<float>", "typed<unsigned char>", "plain")))
    module = server.load(image)
    assert module.function("mixed").kinds[:7] == "nnnnff?" and len(module.function("mixed").kinds) == 8
    assert module.function("typed<float>").kinds[0] == "f" and module.function("typed<unsigned char>").kinds[0] == "u"
    assert module.function("plain").kinds[:2] == "ui"
    bare = server.load(Image(image.code))
    assert bare.function("mixed").kinds == "?" * 8, "a CUBIN has none"
    text = server.load(Image(PTX))
    assert text.function("put").kinds == "n"
    for each in (module, bare, text):
        server.unload(each)


def test_ptx_assembled_by_a_worker_runs(server: CudaServer, pool: CompileWorkers, stream: Stream) -> None:
    try:
        print(pool.identity(Assembly(PTX)).decode())
    except Refusal as refusal:
        pytest.skip(refusal.message)
    assert server.compiler.assembly(PTX) == Assembly(PTX)
    image = pool.run(Assembly(PTX))
    assert image.code.startswith(image_headers.ELF_MAGIC)
    puts(server, image, stream)


def test_ptx_left_to_the_driver_runs(server: CudaServer, stream: Stream) -> None:
    puts(server, Image(PTX), stream)


def test_ptx_of_a_future_version_is_refused_by_the_driver_too(server: CudaServer, stream: Stream) -> None:
    error = refused(server, PTX.replace(b".version 7.0", b".version 99.0"))
    assert "99.0" in error.details.get("log", "99.0")
    puts(server, Image(PTX), stream)


def test_ptx_for_another_device_is_refused(server: CudaServer) -> None:
    major, minor = capability(server)
    error = refused(server, PTX.replace(b"sm_75", b"sm_999"))
    assert "sm_999" in error.message and f"sm_{major}{minor}" in error.message


def test_cubin_for_another_device_is_refused(server: CudaServer) -> None:
    name = other_architecture(server)
    code = cubin_for(name)
    error = refused(server, code)
    assert name in error.message and "compute capability" in error.message
    with pytest.raises(Refusal):
        server.compiler.assembly(code)


def test_cubin_cut_short_is_refused(server: CudaServer, pool: CompileWorkers, stream: Stream) -> None:
    code = pool.run(Source(PUT)).code
    for length in range(0, len(code), max(1, len(code) // 64)):
        refused(server, code[:length])
    puts(server, Image(code), stream)


DAMAGED = r"""
import random, sys
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cuda.server import CudaServer
from hearthd.device.backend.compiler import Image, Source
from hearthd.shared.device_spec import DeviceSpec

server = CudaServer(DeviceSpec(ordinal=0, backend="cuda", index=0))
code = server.compiler.compile(Source(sys.argv[1])).code
draw = random.Random(int(sys.argv[2]))
refused = 0
for _ in range(40):
    damaged = bytearray(code)
    for _ in range(draw.choice((1, 8, 64))):
        damaged[draw.randrange(64, len(damaged))] = draw.randrange(256)
    try:
        server.unload(server.load(Image(bytes(damaged))))
    except Refusal as refusal:
        assert refusal.reason is Reason.MODULE_INVALID, refusal
        refused += 1
server.unload(server.load(Image(code)))
print("refused", refused)
"""


def test_damage_that_headers_do_not_show_is_refused_or_loads(server: CudaServer) -> None:
    """Runs in a separate process, and does not run the loaded code. Damage inside a section can crash the driver (as
    with CUDA 13), which ends one device process and nothing else."""
    command = [sys.executable, "-c", DAMAGED, PUT, str(random.Random(1).randrange(1000))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    print(done.stdout)
    assert done.returncode in (0, -signal.SIGSEGV), done.stderr[-2000:]


def test_a_module_load_includes_its_kernels(server: CudaServer, pool: CompileWorkers) -> None:
    from cuda.bindings import driver

    code = "\n".join(f'extern "C" __global__ void k{n}(int* x) {{ x[{n}] = {n}; }}' for n in range(8))
    module = server.load(pool.run(Source(code)))
    states = [driver.cuFuncIsLoaded(handle)[1] for handle in module.handles()]
    assert len(states) == 8 and set(states) == {driver.CUfunctionLoadingState.CU_FUNCTION_LOADING_STATE_LOADED}
    server.unload(module)


def test_first_launch_of_a_kernel_does_not_wait_for_running_work(
    server: CudaServer, pool: CompileWorkers, stream: Stream
) -> None:
    """A load does wait (see `hearthd.device.resources.idle_work`), so all of a module is loaded together."""
    spin = server.load(pool.run(Source(SPIN))).function("spin")
    module, other = server.load(pool.run(Source(PUT + "// beside it"))), server.create_stream()
    memory = server.allocate(4, other)
    until(server, server.record(other))
    server.launch(spin, (1, 1, 1), (1, 1, 1), 0, stream, bytearray(struct.pack("<Q", int(SPUN_S * 1e9))))
    running = server.record(stream)
    began = time.perf_counter()
    function = module.function("put")
    resolved = time.perf_counter()
    server.launch(function, (1, 1, 1), (1, 1, 1), 0, other, bytearray(struct.pack("<Q", memory.address)))
    launched = time.perf_counter()
    until(server, server.record(other))
    steps = {"resolve": resolved - began, "launch": launched - resolved, "run": time.perf_counter() - launched}
    still = not server.done(running)
    print({name: f"{1e3 * seconds:.2f} ms" for name, seconds in steps.items()})
    until(server, running)
    server.free(memory, other)
    for each in (module, spin.module):
        server.unload(each)
    server.destroy_stream(other)
    assert still, f"a call waited for the running kernel: {steps}"
    assert max(steps.values()) < SPUN_S / 4
