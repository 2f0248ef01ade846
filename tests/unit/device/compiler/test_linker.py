"""Linked modules in compile workers with the real NVRTC and nvJitLink, which need no GPU and no driver."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Assembly, LinkJob, Source
from hearthd.device.broker.worker_entry import cuda_worker
from hearthd.device.compiler import image_headers
from hearthd.device.compiler.limits import CompileLimits
from hearthd.device.compiler.options import parse_options
from hearthd.device.compiler.pool import CompileWorkers

if importlib.util.find_spec("cuda") is None:
    pytest.skip("the package cuda-bindings is not installed (extras cuda12, cuda13)", allow_module_level=True)

from hearthd.device.cuda.assembler import Linker
from hearthd.device.cuda.compiler import CudaCompiler

HOPPER = (9, 0)
KERNEL = """
#include "shared.h"
__device__ int offset = 5;
extern "C" __global__ void f(int* x, short n) { *x = twice(*x); }
template <class T> __global__ void g(T* x) { *x = T(1); }
"""
LIBRARY = """
#include "shared.h"
extern __device__ int offset;
__device__ int twice(int n) { return 2 * n + offset; }
"""
HEADERS = (("shared.h", "__device__ int twice(int);"),)
LTO = ("-dlto",)


@pytest.fixture(scope="module")
def compiler() -> CudaCompiler:
    return CudaCompiler(HOPPER, (12, 4))


@pytest.fixture(scope="module")
def pool(compiler: CudaCompiler) -> Iterator[CompileWorkers]:
    made = CompileWorkers(cuda_worker, CompileLimits(60, 1 << 30, 64 << 20))
    made.warm()
    made.set_compiler(compiler)
    made.ready()
    try:
        made.identity(link(KERNEL))
    except Refusal as refusal:
        made.close()
        pytest.skip(refusal.message)
    yield made
    made.close()


def source(code: str, options: tuple[str, ...] = (), names: tuple[str, ...] = ()) -> Source:
    return Source(code, options, names, HEADERS)


def link(*codes: str | bytes, options: tuple[str, ...] = ()) -> LinkJob:
    inputs = [Assembly(code) if isinstance(code, bytes) else source(code, options) for code in codes]
    return LinkJob(tuple(inputs), options)


def refusal(pool: CompileWorkers, job: LinkJob) -> Refusal:
    with pytest.raises(Refusal) as caught:
        pool.run(job)
    return caught.value


@pytest.mark.parametrize("options", [(), LTO, ("-rdc=true",), ("-dlto", "-use_fast_math", "-lineinfo", "-ftz=false")])
def test_sources_become_one_cubin(pool: CompileWorkers, options: tuple[str, ...]) -> None:
    inputs = (source(KERNEL, options, ("g<int>",)), source(LIBRARY, options))
    image = pool.run(LinkJob(inputs, options))
    assert image_headers.check(image.code, HOPPER) is False, "the device can load it"
    assert b".text.f" in image.code and image.names["g<int>"].encode() in image.code
    assert image.kinds == pool.run(Source(KERNEL.replace("twice(*x)", "1"), (), ("g<int>",), HEADERS)).kinds


def test_inputs_of_every_format(pool: CompileWorkers, compiler: CudaCompiler) -> None:
    from hearthd.device.cuda.nvrtc import NvrtcCompiler

    nvrtc = NvrtcCompiler(HOPPER, compiler.recipe()["includes"])
    cubin = nvrtc.compile(source(LIBRARY), relocatable=True).code
    ir = nvrtc.compile(source(LIBRARY, LTO), relocatable=True).code
    assert cubin.startswith(image_headers.ELF_MAGIC) and ir.startswith(image_headers.LTO_IR_MAGIC)
    assert image_headers.describe(ir) == "code for link-time optimization (LTO-IR)"
    for code in (cubin, ir):
        image = pool.run(link(KERNEL, code))
        assert b".text.f" in image.code and image_headers.check(image.code, HOPPER) is False
        assert pool.run(link(code, KERNEL, options=LTO)).code
    text = b""".version 8.0
.target sm_80
.address_size 64
.visible .func (.param .b32 r) _Z5twicei(.param .b32 n)
{
    .reg .b32 %r<3>;
    ld.param.b32 %r1, [n];
    shl.b32 %r2, %r1, 1;
    st.param.b32 [r], %r2;
    ret;
}
"""
    assert b".text.f" in pool.run(link(KERNEL, text)).code


def test_files_of_nvcc(pool: CompileWorkers, tmp_path: Path) -> None:
    """An object of the host with device code, an archive of it, and a fatbin."""
    nvcc, ar = shutil.which("nvcc"), shutil.which("ar")
    if nvcc is None or ar is None:
        pytest.skip("nvcc or ar is not installed")
    (tmp_path / "library.cu").write_text(LIBRARY)
    (tmp_path / "shared.h").write_text(HEADERS[0][1])
    for output, options in (("library.o", ["-c"]), ("library.fatbin", ["-fatbin"]), ("lto.o", ["-c", "-dlto"])):
        command = [nvcc, "-arch=sm_90", "-rdc=true", *options, "library.cu", "-o", output]
        if subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode:
            pytest.skip("nvcc cannot compile here")
    subprocess.run([ar, "rcs", "library.a", "library.o"], cwd=tmp_path, check=True)
    for name in ("library.o", "library.a", "library.fatbin", "lto.o"):
        options = LTO if name == "lto.o" else ()
        image = pool.run(link(KERNEL, (tmp_path / name).read_bytes(), options=options))
        assert b".text.f" in image.code, name


def test_undefined_and_duplicate_symbols(pool: CompileWorkers) -> None:
    error = refusal(pool, link(KERNEL))
    assert error.reason is Reason.COMPILE_FAILED and "twice" in error.message and "input 0" in error.details["log"]
    for options in ((), LTO):
        error = refusal(pool, link(KERNEL, LIBRARY, LIBRARY, options=options))
        assert error.reason is Reason.COMPILE_FAILED and "twice" in error.details["log"] and "extern" in error.fix
    assert "input 1, input 2" in refusal(pool, link(KERNEL, LIBRARY, LIBRARY)).message


def test_errors_name_the_input(pool: CompileWorkers) -> None:
    error = refusal(pool, link(KERNEL, "__device__ int a = b;"))
    assert error.reason is Reason.COMPILE_FAILED and error.message.startswith("input 1: kernel.cu(1)")
    assert "kernel.cu(1)" in error.details["log"]
    error = refusal(pool, link(KERNEL, b"neither of them"))
    assert error.reason is Reason.MODULE_INVALID and error.message.startswith("input 1: It is neither")
    error = refusal(pool, link(KERNEL, b".version 8.0\n.target sm_100\n"))
    assert error.reason is Reason.MODULE_INVALID and "sm_100" in error.message
    error = refusal(pool, link(KERNEL, '#include "/etc/passwd"'))
    assert error.reason is Reason.COMPILE_FAILED and "/etc/passwd" in error.message
    assert "-ewp" in refusal(pool, link(KERNEL, LIBRARY, options=("-ewp",))).message


def test_a_damaged_input_costs_one_link(pool: CompileWorkers) -> None:
    whole = link(KERNEL, LIBRARY)
    for code in (b"\x7fELF" + bytes(100), b"\xed\x43\x4e\x7f" + bytes(100), b"!<arch>\n" + bytes(100)):
        assert refusal(pool, link(KERNEL, code)).fix
        assert pool.run(whole).code


def test_the_identity_names_the_linker_and_the_compiler(pool: CompileWorkers) -> None:
    identity = pool.identity(link(KERNEL))
    assert identity.startswith(b"nvJitLink 1") and b"sm_90a" in identity and b"nvrtc" in identity
    assert pool.identity(source(KERNEL)) in identity


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("cuda.bindings.nvjitlink", raising=False)  # of an import by another test
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvjitlink", None)
    with pytest.raises(Refusal) as caught:
        Linker(HOPPER).link([b""], parse_options(()))
    assert caught.value.reason is Reason.NO_COMPILER and "nvidia-nvjitlink" in caught.value.fix
