"""Compile workers with the real NVRTC, nvJitLink and ptxas, none of which needs a GPU or a driver."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.access_table import SYMBOL
from hearthd.device.backend.compiler import Assembly, Source
from hearthd.device.broker.worker_entry import cuda_worker
from hearthd.device.compiler import image_headers
from hearthd.device.compiler.limits import CompileLimits
from hearthd.device.compiler.pool import CompileWorkers
from hearthd.device.platform.sandbox import landlock_version

if importlib.util.find_spec("cuda") is None:
    pytest.skip("the package cuda-bindings is not installed (extras cuda12, cuda13)", allow_module_level=True)

from hearthd.device.cuda.assembler import PtxAssembler
from hearthd.device.cuda.compiler import CudaCompiler

HOPPER = (9, 0)
FINE = Source('extern "C" __global__ void f(int* x) { *x = 1; }')
PTX = b"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry f(.param .u64 p)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [p];
    mov.u32 %r1, 7;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""
MEMORY = 512 << 20


@pytest.fixture(scope="module")
def pool() -> Iterator[CompileWorkers]:
    compiler = CudaCompiler(HOPPER, (12, 4))
    made = CompileWorkers(cuda_worker, CompileLimits(20, MEMORY, 64 << 20))
    made.warm()
    made.set_compiler(compiler)
    made.ready()
    if b"nvrtc 1" not in made.identity(FINE):
        made.close()
        pytest.skip("NVRTC is not installed (nvidia-cuda-nvrtc)")
    yield made
    made.close()


@pytest.fixture(scope="module")
def assembler(pool: CompileWorkers) -> bytes:
    try:
        return pool.identity(Assembly(PTX))
    except Refusal as refusal:
        pytest.skip(refusal.message)


def refusal(pool: CompileWorkers, job: Source | Assembly) -> Refusal:
    with pytest.raises(Refusal) as caught:
        pool.run(job)
    return caught.value


def test_source_becomes_cubin_for_the_device(pool: CompileWorkers) -> None:
    image = pool.run(FINE)
    assert image_headers.read_cubin(image.code).architecture == 90
    assert (pool.confined or "").startswith("landlock") == bool(landlock_version())
    assert b"sm_90a" in pool.identity(FINE)


def test_headers_options_and_names_reach_the_compiler(pool: CompileWorkers) -> None:
    source = Source(
        '#include "mine/value.h"\n#include <cuda_fp16.h>\n#include <cooperative_groups.h>\n'
        "template <class T> __global__ void f(T* x, __half h) { *x = VALUE; }\n__constant__ float table[4];",
        ("-DVALUE=N", "-std=c++20"), ("f<int>", "&table"), (("mine/value.h", "#define N 3 // \u03c0"),),
    )  # fmt: skip
    image = pool.run(source)
    assert set(image.names) == {"f<int>", "&table"} and image.names["f<int>"].startswith("_Z1f")
    warned = pool.run(Source("__global__ void f() { int unused; }"))
    assert "unused" in warned.log


def test_errors_bring_the_log(pool: CompileWorkers) -> None:
    error = refusal(pool, Source("int a;\n__device__ int b = c;\n"))
    assert error.reason is Reason.COMPILE_FAILED and "kernel.cu(2)" in error.details["log"]
    assert "--pre-include" in refusal(pool, Source("", ("--pre-include=a.h",))).message
    assert "missing" in refusal(pool, Source("", (), ("missing<int>",))).message


def test_functions_of_programmatic_launch_need_no_header(pool: CompileWorkers) -> None:
    body = 'extern "C" __global__ void f(int* x) { WAIT *x = 1; cudaTriggerProgrammaticLaunchCompletion(); }'
    image = pool.run(Source(body.replace("WAIT", "cudaGridDependencySynchronize();")))
    assert b".text.f" in image.code
    sent = (("wait.h", "#define WAIT cudaGridDependencySynchronize();"),)
    assert b".text.f" in pool.run(Source('#include "wait.h"\n' + body, headers=sent)).code
    own = ("cuda_device_runtime_api.h", "__device__ void cudaTriggerProgrammaticLaunchCompletion() {}\n#define WAIT")
    assert b".text.f" in pool.run(Source(f'#include "{own[0]}"\n' + body, headers=(own,))).code


def test_conditions_of_graphs_need_no_header(pool: CompileWorkers) -> None:
    body = 'extern "C" __global__ void f(cudaGraphConditionalHandle h) { cudaGraphSetConditional(h, 1); }'
    declared = (
        'extern "C" __device__ void cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned int value);'
    )
    for code in (body, f"{declared}\n{body}"):
        assert b".text.f" in pool.run(Source(code)).code
    assert "kernel.cu(2)" in refusal(pool, Source(f"{body}\n__device__ int b = c;\n")).details["log"]


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        ("#define A0 x += 1; x *= 3;\n"
         + "".join(f"#define A{n} {f'A{n - 1} ' * 10}\n" for n in range(1, 10))
         + "__global__ void f(int* p) { int x = *p; A9 *p = x; }", "memory"),
        ("__device__ int a[1 << 28] = {1};\n__global__ void f(int* x) { *x = a[5]; }", "memory"),
        ("__device__ int a[1 << 25] = {1};\n__global__ void f(int* x) { *x = a[5]; }", "file"),
    ],
    ids=["laughs", "large array", "large image"],
)  # fmt: skip
def test_memory_and_size_are_bounded(pool: CompileWorkers, code: str, limit: str) -> None:
    error = refusal(pool, Source(code))
    assert error.reason is Reason.COMPILE_LIMIT and error.details["limit"] in (limit, "memory")
    assert pool.run(FINE).code


def test_a_crash_in_the_library_costs_one_compile(pool: CompileWorkers) -> None:
    slow = """
    __device__ constexpr int turns(int n) {
        int s = 0;
        for (int i = 0; i < 400; ++i) for (int j = 0; j < 500; ++j) s += i ^ j ^ n;
        return s;
    }
    template <int N> struct F { static constexpr int v = turns(N) + F<N - 1>::v; };
    template <> struct F<0> { static constexpr int v = 1; };
    extern "C" __global__ void f(int* x) { *x = F<190>::v; }
    """
    pool.run(FINE)
    (worker,) = pool.pids()
    before = ticks(worker)
    outcome: list[Refusal] = []
    thread = threading.Thread(target=lambda: outcome.append(refusal(pool, Source(slow))))
    thread.start()
    deadline = time.monotonic() + 20
    while ticks(worker) < before + 20:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(worker, signal.SIGSEGV)
    thread.join()
    assert outcome[0].reason is Reason.COMPILE_FAILED and outcome[0].details["signal"] == "SIGSEGV"
    assert pool.run(FINE).code


def ticks(pid: int) -> int:
    """Returns the processor time that the process has used, in hundredths of a second."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


# ---- the sandbox ----


@pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")
def test_the_sandbox_alone_keeps_nvrtc_from_the_hosts_files(tmp_path: Path) -> None:
    """Leaves out the check of the text, which would refuse these sources first."""
    secret, scratch = tmp_path / "secret.h", tmp_path / "scratch"
    secret.write_text("int not_to_be_seen = no_such_name;\n")
    scratch.mkdir()
    script = """
import os, sys
from hearth_proto.reasons import Refusal
from hearthd.device.compiler import worker_main
from hearthd.device.platform import sandbox
from hearthd.device.cuda.compiler import CudaCompiler
from hearthd.device.backend.compiler import Source
secret, scratch = sys.argv[1:]
os.chdir(os.path.dirname(secret))
compiler = CudaCompiler((9, 0), (12, 4))
def tried():
    for code in ('#include "%s"' % secret, '#include "secret.h"', "#define W <%s>\\n#include W" % secret,
                 '#if __has_include("%s")\\n#error not_to_be_seen\\n#endif' % secret):
        try: compiler.compile(Source(code))
        except Refusal as refusal: yield "not_to_be_seen" in str(refusal.details)
        else: yield False
assert all(tried()), "NVRTC reads them where nothing keeps it from that"
reads, writes = compiler.sandbox_paths()
assert sandbox.confine([*worker_main._SYSTEM_READS, *reads], [scratch, "/dev/null", *writes])
assert compiler.compile(Source('#include <cuda_bf16.h>\\n__global__ void f() {}')).code
assert not any(tried())
assert not [module for module in sys.modules if module.startswith("cupy")], "it takes long to import"
"""
    completed = subprocess.run(
        [sys.executable, "-c", script, str(secret), str(scratch)], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize(
    "code", ['#include "/etc/passwd"', '#include "../../../../etc/passwd"', '#line 1 "/etc/passwd"\n#include __FILE__']
)
def test_text_check_alone_keeps_nvrtc_from_the_hosts_files(code: str) -> None:
    pool = CompileWorkers(cuda_worker, CompileLimits(20, MEMORY), confine=False)
    pool.set_compiler(CudaCompiler(HOPPER, (12, 4)))
    try:
        error = refusal(pool, Source(code))
        assert error.reason is Reason.COMPILE_FAILED and "root:" not in str(error.details) and not pool.confined
    finally:
        pool.close()


# ---- PTX ----


def test_ptx_becomes_cubin(pool: CompileWorkers, assembler: bytes) -> None:
    assert b"sm_90a" in assembler
    for code in (PTX, PTX + b"\0", PTX.replace(b"sm_80", b"sm_90a")):
        image = pool.run(Assembly(code))
        assert image_headers.read_cubin(image.code).architecture == 90 and b".text.f" in image.code


def test_ptx_of_a_future_version(pool: CompileWorkers, assembler: bytes) -> None:
    error = refusal(pool, Assembly(PTX.replace(b".version 8.0", b".version 99.0")))
    assert error.reason is Reason.MODULE_INVALID
    assert error.details["requested"] == "99.0" and error.details["allowed"] in error.message


def test_ptx_that_a_newer_driver_may_know_is_left_to_it(assembler: bytes) -> None:
    pool = CompileWorkers(cuda_worker, CompileLimits(20, MEMORY))
    pool.set_compiler(CudaCompiler(HOPPER, (99, 0)))
    try:
        error = refusal(pool, Assembly(PTX.replace(b".version 8.0", b".version 98.0")))
        assert error.reason is Reason.NO_COMPILER and "driver" in error.message
    finally:
        pool.close()


def test_ptx_that_is_wrong_brings_the_log(pool: CompileWorkers, assembler: bytes) -> None:
    error = refusal(pool, Assembly(PTX.replace(b"st.global", b"st.gloobal")))
    assert error.reason is Reason.MODULE_INVALID and "gloobal" in error.details["log"] and error.fix


def test_a_fatbin_of_ptx(pool: CompileWorkers, assembler: bytes) -> None:
    if not assembler.startswith(b"nvJitLink"):
        pytest.skip("ptxas takes no fatbin")
    entry = PTX + b"\0" * (-len(PTX) % 8)
    head = (1).to_bytes(2, "little") + b"\x01\x01" + (64).to_bytes(4, "little") + len(entry).to_bytes(8, "little")
    head += bytes(8) + b"\0\0\x08\0" + (80).to_bytes(4, "little") + bytes(8) + (0x11).to_bytes(8, "little") + bytes(16)
    fatbin = (
        image_headers.FATBIN_MAGIC + b"\x01\0\x10\0" + (len(head) + len(entry)).to_bytes(8, "little") + head + entry
    )
    assert image_headers.check(fatbin, HOPPER) is True
    assert b".text.f" in pool.run(Assembly(fatbin)).code


def test_ptxas_is_used_without_nvjitlink(monkeypatch: pytest.MonkeyPatch) -> None:
    if not PtxAssembler.files():
        pytest.skip("there is no ptxas")
    monkeypatch.delattr("cuda.bindings.nvjitlink", raising=False)  # of an import by another test
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvjitlink", None)
    made = PtxAssembler(HOPPER, (12, 4))
    assert made.identity().startswith(b"ptxas ")
    assert b".text.f" in made.assemble(Assembly(PTX)).code
    with pytest.raises(Refusal) as caught:
        made.assemble(Assembly(PTX.replace(b"st.global", b"st.gloobal")))
    assert caught.value.reason is Reason.MODULE_INVALID and "gloobal" in caught.value.details["log"]
    assert "/tmp" not in caught.value.details["log"]
    with pytest.raises(Refusal) as caught:
        made.assemble(Assembly(image_headers.FATBIN_MAGIC + bytes(60)))
    assert caught.value.reason is Reason.NO_COMPILER


def test_instrumented_source_is_assembled() -> None:
    compiler, source = CudaCompiler(HOPPER, (13, 0)), Source(FINE.code, ("-fsanitize=address",))
    plain = compiler.compile(FINE)
    assert SYMBOL.encode() not in plain.code
    try:
        image = compiler.compile(source)
    except Refusal as refusal:  # the assembler is older than NVRTC
        assert refusal.reason is Reason.COMPILE_FAILED and "nvidia-nvjitlink" in refusal.fix
        pytest.skip(refusal.message)
    assert SYMBOL.encode() in image.code and image.kinds == plain.kinds
