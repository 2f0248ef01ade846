"""Modules from source to kernels: compiled once and cached, with clear errors for a wrong source."""

from __future__ import annotations

import base64
import io
import re
import shutil
import struct
import sys
import uuid
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.durables import lose
from tests.support.daemon.harness import BACKEND, DaemonProcess, StartDaemon, on_cpu, on_gpu
from tests.support.daemon.kernels import COMMON, described, saxpy_works
from tests.support.daemon.raw import Execute, Raw
from tests.support.folders import ROOT

PTX = """
.version 7.0
.target sm_75
.address_size 64
// mark
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

WRONG = """extern "C" __global__ void f(int* x) {
    x[0] = 1;
    x[1] = no_such_name;
}
"""


def fresh(body: str) -> str:
    """Returns a source that is in no cache."""
    return f"// {uuid.uuid4()}\n{body}"


def test_a_compile_error_has_the_log_with_line_numbers(gpu: hearth.Device) -> None:
    module = gpu.RawModule(code=WRONG)
    log = io.StringIO()
    with pytest.raises(hearth.CompileError) as caught:
        module.compile(log_stream=log)
    assert caught.value.reason == "COMPILE_FAILED"
    for text in (caught.value.log, log.getvalue()):
        assert "no_such_name" in text
        line = next(line for line in text.splitlines() if "no_such_name" in line and "error" in line)
        assert "(3)" in line or ":3:" in line, line
    saxpy_works(gpu)


def test_compile_error_is_reported_by_the_launch(gpu: hearth.Device) -> None:
    x, untouched = gpu.zeros(4, np.int32), gpu.full(4, 7, np.int32)
    gpu.RawKernel(WRONG, "f")((1,), (1,), (x,))
    with pytest.raises(hearth.CompileError, match="f") as caught:
        gpu.synchronize()
    assert [failure.command for failure in caught.value.failures] == ["launch f"]
    gpu.synchronize()
    assert (untouched.get() == 7).all()


def test_a_long_log_arrives(gpu: hearth.Device) -> None:
    code = "\n".join(f"__device__ int f{i}() {{ return undeclared_{i}; }}" for i in range(40))
    with pytest.raises(hearth.CompileError) as caught:
        gpu.RawModule(code=code).compile()
    assert "undeclared_0" in caught.value.log and len(caught.value.log) > 1000


def test_errors_for_missing_names_list_the_existing_names(gpu: hearth.Device) -> None:
    module = gpu.RawModule(code=COMMON + "__device__ int there;")
    with pytest.raises(hearth.InvalidHandleError, match="missing") as caught:
        print(module.get_function("missing").num_regs)
    assert caught.value.reason == "FUNCTION_NOT_FOUND" and "saxpy" in str(caught.value)
    module.get_function("missing")((1,), (1,))
    with pytest.raises(hearth.InvalidHandleError, match="missing"):
        gpu.synchronize()
    with pytest.raises(hearth.InvalidHandleError, match="nowhere") as caught:
        module.get_global("nowhere")
    assert caught.value.reason == "GLOBAL_NOT_FOUND"
    assert set(module.functions) == {"saxpy", "add_one", "mix", "spin"}
    if BACKEND == "cpu":  # CUDA's driver does not list variables
        assert "there" in module.globals


def test_options(gpu: hearth.Device) -> None:
    code = 'extern "C" __global__ void f(int* x) { *x = VALUE + (__cplusplus >= 201703L ? 1000 : 0); }'
    x = gpu.zeros(1, np.int32)
    for value in (3, 4):
        gpu.RawKernel(code, "f", options=(f"-DVALUE={value}", "-std=c++17", "--use_fast_math"))((1,), (1,), (x,))
        assert x.item() == 1000 + value
    with pytest.raises(hearth.CompileError) as caught:
        gpu.RawModule(code=code, options=("-DVALUE=1", "--no-such-option")).compile()
    assert "no-such-option" in str(caught.value) + caught.value.log


def test_headers(gpu: hearth.Device) -> None:
    code = '#include "mine/value.h"\n#include <more.h>\nextern "C" __global__ void f(int* x) { *x = value() + MORE; }'
    x = gpu.zeros(1, np.int32)
    for value in (20, 30):
        headers = {"mine/value.h": f"__device__ int value() {{ return {value}; }}", "more.h": "#define MORE 1\n"}
        module = gpu.RawModule(code=code, headers=headers)
        module.get_function("f")((1,), (1,), (x,))
        assert x.item() == value + 1
    with pytest.raises(hearth.CompileError) as caught:
        gpu.RawModule(code=code, headers={"mine/value.h": ""}).compile()
    assert "more.h" in str(caught.value) + caught.value.log


def test_name_expressions(gpu: hearth.Device) -> None:
    code = """
    namespace deep { template <typename T, int N> __global__ void scale(T* x) { x[threadIdx.x] *= N; } }
    template <typename T> __global__ void clear(T* x) { x[threadIdx.x] = 0; }
    """
    names = ["deep::scale<float, 3>", "deep::scale<int, -2>", "clear<int>"]
    module = gpu.RawModule(code=code, name_expressions=names)
    floats, ints = gpu.ones(4, np.float32), gpu.ones(4, np.int32)
    module.get_function("deep::scale<float, 3>")((1,), (4,), (floats,))
    module.get_function("deep::scale<int, -2>")((1,), (4,), (ints,))
    assert (floats.get() == 3).all() and (ints.get() == -2).all()
    module.get_function("clear<int>")((1,), (2,), (ints,))
    assert ints.get().tolist() == [0, 0, -2, -2]
    with pytest.raises(hearth.CompileError):
        gpu.RawModule(code=code, name_expressions=["clear<no_such_type>"]).compile()
    for keywords in ({"name_expressions": "clear<int>"}, {"options": "-DX"}):
        with pytest.raises(hearth.DtypeError, match="is a str") as refused:
            gpu.RawModule(code=code, **keywords)  # type: ignore[arg-type]
        assert next(iter(keywords)) in refused.value.fix


def test_globals(gpu: hearth.Device) -> None:
    code = """
    __constant__ float coefficients[4] = {1, 2, 3, 4};
    __device__ int counter = 5;
    extern "C" __global__ void f(float* out) { out[threadIdx.x] = coefficients[threadIdx.x]; atomicAdd(&counter, 1); }
    """
    module = gpu.RawModule(code=code)
    f, out = module.get_function("f"), gpu.zeros(4, np.float32)
    coefficients, counter = module.get_global("coefficients", np.float32, 4), module.get_global("counter", np.int32)
    f((1,), (4,), (out,))
    assert out.get().tolist() == [1, 2, 3, 4] and counter.get().tolist() == [9]
    coefficients.set(np.arange(4, dtype=np.float32))
    module.get_global("counter").set(np.array([100], np.int32))
    f((1,), (4,), (out,))
    assert out.get().tolist() == [0, 1, 2, 3] and counter.get().tolist() == [104]
    coefficients[1:3].fill(-1)
    assert coefficients.get().tolist() == [0, -1, -1, 3]
    module.get_global("coefficients").set(np.array([1, 2, 3, 4], ">f4"))  # bytes are in the device's order
    assert coefficients.get().tolist() == [1, 2, 3, 4]
    for wrong in ({"dtype": "V3"}, {"dtype": np.float32, "shape": (5,)}):
        with pytest.raises(hearth.ArgumentError, match="16 bytes"):
            module.get_global("coefficients", **wrong)


def test_sessions_do_not_share_variables(daemon: DaemonProcess) -> None:
    code = '__device__ int v = 1;\nextern "C" __global__ void f() { v += 1; }'
    with daemon.connect() as first, daemon.connect() as second:
        modules = [node.device(0).RawModule(code=code) for node in (first, second)]
        modules[0].get_function("f")((1,), (1,))
        assert [module.get_global("v", np.int32).get()[0] for module in modules] == [2, 1]


def test_a_module_outlives_its_python_object_while_it_runs(gpu: hearth.Device) -> None:
    x = gpu.zeros(1, np.int32)
    for _ in range(20):
        gpu.RawKernel('extern "C" __global__ void f(int* x) { *x += 1; }', "f")((1,), (1,), (x,))
    assert x.item() == 20


def test_one_source_of_many_clients_is_compiled_once(daemon: DaemonProcess) -> None:
    code = fresh('extern "C" __global__ void f(int* x) { *x = 42; }')
    before = daemon.counter("compile_cache_misses")

    def use(_: int) -> tuple[int, bool]:
        with daemon.connect() as node:
            gpu = node.device(0)
            module = gpu.RawModule(code=code)
            x = gpu.zeros(1, np.int32)
            module.get_function("f")((1,), (1,), (x,))
            return x.item(), described(module).cached

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(use, range(6)))
    assert [value for value, _ in results] == [42] * 6
    assert [cached for _, cached in results].count(False) <= 1  # zero if that session described its module later
    assert daemon.counter("compile_cache_misses") - before == 1


def test_second_device_takes_the_module_from_the_cache(pair: list[hearth.Device]) -> None:
    code = fresh('extern "C" __global__ void f() {}')
    first = pair[0].RawModule(code=code)
    assert not described(first).cached and described(first).compile_ns > 0
    second = pair[1].RawModule(code=code)
    assert described(second).cached and described(second).compile_ns == 0


def test_concurrent_loads_on_two_devices_compile_once(pair: list[hearth.Device]) -> None:
    code = fresh('extern "C" __global__ void f() {}')
    modules = [device.RawModule(code=code) for device in pair]
    assert [described(module).cached for module in modules].count(False) == 1


def test_the_cache_survives_the_daemon_and_damage(
    start_daemon: StartDaemon, cache: Path, gpu: hearth.Device, tmp_path: Path
) -> None:
    code = fresh('extern "C" __global__ void f(int* x) { *x = 7; }')
    directory = tmp_path / "private"
    directory.mkdir(mode=0o700)
    saxpy_works(gpu)
    for made in cache.iterdir():  # keeps the files that the CPU backend builds only once, because building takes long
        if made.is_dir() and len(made.name) > 2 and not made.name.startswith("."):
            shutil.copytree(made, directory / made.name)

    def run() -> bool:
        daemon = start_daemon(cache_dir=directory)
        with daemon.connect() as node:
            gpu = node.device(0)
            module, x = gpu.RawModule(code=code), gpu.zeros(1, np.int32)
            module.get_function("f")((1,), (1,), (x,))
            assert x.item() == 7
            cached = described(module).cached
        assert daemon.stop() == 0
        return cached

    assert [run(), run()] == [False, True]
    damaged = [path for path in directory.glob("??/*") if path.is_file()]
    assert damaged, "compiled modules are files in the cache's directory"
    for path in damaged:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
    assert [run(), run()] == [False, True]


def test_kernel_object_is_available_before_its_compile(gpu: hearth.Device) -> None:
    """Uploads and work on other streams continue during the compile."""
    kernel = gpu.RawKernel(fresh('extern "C" __global__ void f(int* x) { *x += 1; }'), "f")
    x, y = gpu.zeros(1, np.int32), gpu.zeros(1, np.int32)
    kernel((1,), (1,), (x,))
    with gpu.stream():
        assert y.item() == 0
    assert x.item() == 1


def test_attributes_and_parameters(gpu: hearth.Device) -> None:
    code = """
    struct Pair { char a; double b; };
    extern "C" __global__ void f(char a, double b, Pair c, const float* d, short e) {
        __shared__ float part[64];
        part[threadIdx.x] = a; __syncthreads(); if (d == nullptr) part[0] = e;
    }
    """
    f = gpu.RawKernel(code, "f")
    assert f.parameters == [(0, 1), (8, 8), (16, 16), (32, 8), (40, 2)]
    assert f.attributes["shared_size_bytes"] >= 0 and 0 < f.max_threads_per_block <= 1024
    optin = gpu.properties.shared_mem_per_block_optin
    assert f.max_dynamic_shared_size_bytes == optin - f.shared_size_bytes
    dynamic = gpu.RawKernel(
        'extern "C" __global__ void g(int* x) { extern __shared__ int s[]; s[0] = 5; *x = s[0]; }', "g"
    )
    assert dynamic.max_dynamic_shared_size_bytes == optin
    x = gpu.zeros(1, np.int32)
    dynamic((1,), (1,), (x,), shared_mem=dynamic.max_dynamic_shared_size_bytes)
    assert x.item() == 5


CUPYS = {
    "max_threads_per_block", "shared_size_bytes", "const_size_bytes", "local_size_bytes", "num_regs", "ptx_version",
    "binary_version", "cache_mode_ca", "max_dynamic_shared_size_bytes", "preferred_shared_memory_carveout",
}  # fmt: skip


def test_function_attributes_equal_those_of_cupy(gpu: hearth.Device) -> None:
    f = gpu.RawKernel('extern "C" __global__ void f(int* x) { *x += 1; }', "f")
    found = f.attributes
    assert set(found) == CUPYS and all(type(value) is int for value in found.values())
    assert found["preferred_shared_memory_carveout"] == -1 and found["cache_mode_ca"] in (0, 1)
    if BACKEND == "cuda":
        major, minor = gpu.properties.compute_capability
        assert found["binary_version"] == 10 * major + minor and found["ptx_version"] >= 50
    else:
        assert found["binary_version"] == found["ptx_version"] == 0


def test_settable_function_attributes(gpu: hearth.Device) -> None:
    f, x = gpu.RawKernel('extern "C" __global__ void f(int* x) { *x += 1; }', "f"), gpu.zeros(1, np.int32)
    for percent in (100, 0, 50, -1, 25):
        f.preferred_shared_memory_carveout = percent
        assert f.preferred_shared_memory_carveout == f.attributes["preferred_shared_memory_carveout"] == percent
        f(1, 1, (x,))
    for percent in (101, -2):
        with pytest.raises(hearth.ArgumentError, match=f"{percent} % is not from 0 to 100"):
            f.preferred_shared_memory_carveout = percent
    assert f.preferred_shared_memory_carveout == 25 and x.item() == 5
    f.max_dynamic_shared_size_bytes = most = f.max_dynamic_shared_size_bytes
    assert f.max_dynamic_shared_size_bytes == most
    for size in (most + 1, -1):
        with pytest.raises(hearth.ArgumentError, match=f"{size} bytes of dynamic shared memory"):
            f.max_dynamic_shared_size_bytes = size
    with pytest.raises(hearth.CompileError):
        gpu.RawKernel("no kernel", "f").preferred_shared_memory_carveout = 5


def test_a_set_attribute_survives_a_loss(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with daemon.connect() as node:
        gpu = node.device(0)
        module = gpu.RawModule('extern "C" __global__ void f(int* x) { *x += 1; }')
        f = module.get_function("f")
        f.preferred_shared_memory_carveout = 40
        lose(daemon, gpu)
        x = gpu.zeros(1, np.int32)
        f(1, 1, (x,))
        assert x.item() == 1
        assert module.get_function("f").preferred_shared_memory_carveout == 40


@pytest.mark.parametrize(
    "code", [b"\x7fELF" + bytes(100), b"\xff\xfe is no text", ".version 8.0\n.target nonsense\n", "}"],
    ids=["elf", "not-utf8", "ptx", "brace"],
)  # fmt: skip
def test_invalid_code_is_refused(gpu: hearth.Device, code: str | bytes) -> None:
    with pytest.raises((hearth.CompileError, hearth.UnsupportedError)) as caught:
        gpu.RawModule(code=code).compile()
    assert caught.value.reason in ("COMPILE_FAILED", "MODULE_INVALID", "UNSUPPORTED")
    saxpy_works(gpu)


def test_unloading_a_module_whose_kernel_runs(raw: Raw, stream: Execute) -> None:
    """The handle is invalid immediately, and so are those of its functions and variables; the code is unloaded after
    the kernel has ended."""
    code = """
    __device__ int step = 5;
    extern "C" __global__ void late(int* x, long long cycles) {
        long long start = clock64();
        while (clock64() - start < cycles) {}
        *x += step;
    }
    """
    flag, module, function, step = (raw.mint() + 100 for _ in range(4))
    load = c.LoadModule(module=module, kind=c.CODE_KIND_CUDA_CPP, code=code.encode())
    assert stream.ask(c.Command(load_module=load)).HasField("module")
    arguments = [c.Argument(pointer=c.Argument.Pointer(buffer=flag)), c.Argument(int64=400_000_000)]
    one = c.Dim3(x=1, y=1, z=1)
    stream.batch(
        c.Command(get_function=c.GetFunction(function=function, module=module, name="late")),
        c.Command(get_global=c.GetGlobal(buffer=step, module=module, name="step")),
        c.Command(allocate=c.Allocate(buffer=flag, size=4)),
        c.Command(fill=c.Fill(buffer=flag, size=4, pattern=b"\0")),
        c.Command(launch=c.Launch(function=function, grid=one, block=one, arguments=arguments)),
    )
    assert stream.ask(c.Command(unload_module=c.UnloadModule(module=module))).HasField("done")
    for gone in (
        c.Command(describe_module=c.DescribeModule(module=module)),
        c.Command(describe_function=c.DescribeFunction(function=function)),
        c.Command(read=c.Read(buffer=step, size=4)),
    ):
        assert from_status(stream.ask(gone).error).reason == Reason.INVALID_HANDLE
    answer = stream.ask(c.Command(read=c.Read(buffer=flag, size=4)))
    assert answer.read.data == struct.pack("<i", 5), answer
    again = c.LoadModule(module=module, kind=c.CODE_KIND_CUDA_CPP, code=code.encode())
    assert stream.ask(c.Command(load_module=again)).HasField("module"), "its number can be used again"


@on_gpu
def test_ptx_is_compiled_like_source(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    """A compile worker compiles it once, and the result is cached; if no assembler is installed, the driver compiles it
    each time."""
    before = daemon.counter("compile_cache_misses")
    code = PTX.replace("// mark", f"// {uuid.uuid4()}")
    modules = [gpu.RawModule(code=code) for _ in range(3)]
    x = gpu.zeros(1, np.int32)
    for module in modules:
        module.get_function("put")((1,), (1,), (x,))
    assert x.item() == 42
    assert daemon.counter("compile_cache_misses") - before in (0, 1)
    cached = [described(module).cached for module in modules]
    assert cached in ([False, True, True], [False, False, False])


@on_gpu
@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (".version 7.0", ".version 99.0", "99.0"),
        ("sm_75", "sm_999", "sm_999"),
        ("st.global", "st.gloobal", "gloobal"),
        ("ret;", "", ""),
    ],
    ids=["version", "architecture", "syntax", "end"],
)
def test_ptx_that_cannot_be_compiled(gpu: hearth.Device, old: str, new: str, told: str) -> None:
    module = gpu.RawModule(code=PTX.replace(old, new))
    try:
        module.compile()
    except hearth.CompileError as error:
        assert error.reason == "MODULE_INVALID" and error.fix
        assert told in str(error) + str(error.details)
    else:
        assert not told
    saxpy_works(gpu)


@on_gpu
def test_binary_code_that_this_device_cannot_run(gpu: hearth.Device) -> None:
    """CUBINs and fatbins that are truncated, for another machine, or for another architecture."""
    folder = ROOT / "tests" / "unit" / "device" / "compiler" / "device_code"
    cubin, fatbin = (
        zlib.decompress(base64.b85decode(path.read_bytes())) for path in sorted(folder.glob("*.b85"))[::-1]
    )
    assert cubin.startswith(b"\x7fELF")
    host = Path(sys.executable).read_bytes()[:100_000]
    wrong = [cubin[:-100], cubin[:64], fatbin[:-100], fatbin[:20], b"\xb1\x43\x62\x46" + bytes(20), host]
    if gpu.properties.compute_capability != (9, 0):
        wrong.append(cubin)
    for code in wrong:
        with pytest.raises(hearth.CompileError) as caught:
            gpu.RawModule(code=code).compile()
        assert caught.value.reason == "MODULE_INVALID" and caught.value.fix
    saxpy_works(gpu)


@on_cpu
@pytest.mark.parametrize(
    ("line", "feature"),
    [
        ('asm volatile("bar.sync 0;");', "inline PTX (asm)"),
        ("child<<<1, 1>>>(x);", "dynamic parallelism (launching kernels from a kernel)"),
        ("*x = tex1D<int>(*(unsigned long long*)x, 0);", "textures and surfaces"),
        ("CUtensorMap* map;", "bulk asynchronous copies (TMA)"),
        ("nvcuda::wmma::fill_fragment(x, 0);", "tensor cores (wmma, mma)"),
        ("auto cluster = cooperative_groups::this_cluster();", "thread block clusters"),
        ("auto grids = cooperative_groups::this_multi_grid();", "launches over several devices (multi_grid_group)"),
        ("__barrier_sync(1);", "named barriers (__barrier_sync)"),
        ("*x = __shfl_down(*x, 1);", "warp functions without _sync"),
    ],
    ids=["asm", "child", "texture", "tma", "wmma", "cluster", "grids", "barrier", "warp"],
)
def test_features_missing_on_the_cpu_are_refused_by_name(gpu: hearth.Device, line: str, feature: str) -> None:
    code = f'__global__ void child(int* x) {{}}\nextern "C" __global__ void f(int* x) {{\n{line}\n}}'
    with pytest.raises(hearth.HearthError, match=re.escape("kernel.cu(3)")) as caught:
        gpu.RawModule(code=code).compile()
    assert caught.value.reason == "UNSUPPORTED" and caught.value.fix
    assert caught.value.details["feature"] == feature and caught.value.details["line"] == "3"


def test_warnings_of_a_compile_that_succeeds_arrive(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    """Warnings are delivered even if the code comes from the cache: in this session, in another session, and for
    another device."""
    code = fresh('extern "C" __global__ void f(int* x) {\n    int idle_one = 3;\n    *x = 1;\n}')
    logs: list[str] = []
    with daemon.connect() as node:
        for device in (gpu, gpu, *node.devices[:2]):
            module, log = device.RawModule(code=code, options=("--split-compile=2",)), io.StringIO()
            module.compile(log_stream=log)
            assert described(module).cached == bool(logs)
            logs.append(log.getvalue())
    assert len(set(logs)) == 1
    lines = logs[0].splitlines()
    assert any(line.startswith("kernel.cu(3): warning") and "idle_one" in line for line in lines), logs[0]
    assert any("--split-compile=2" in line and "no effect" in line for line in lines), logs[0]
    quiet = io.StringIO()
    gpu.RawModule(code=code, options=("-w",)).compile(log_stream=quiet)
    assert quiet.getvalue().strip() == ""


def test_options_that_no_backend_takes_are_refused_alike(gpu: hearth.Device) -> None:
    for option in ("-ewp", "-gen-opt-lto", "--pre-include=a.h"):
        with pytest.raises(hearth.CompileError, match="is not allowed") as caught:
            gpu.RawModule(code=COMMON, options=(option,)).compile()
        assert caught.value.reason == "COMPILE_FAILED" and caught.value.details["option"] == option
        assert option in caught.value.log and caught.value.fix


def test_options_and_keywords_of_cupys_programs_are_noted_in_the_log(gpu: hearth.Device) -> None:
    options = ("-arch=sm_70", "-I/usr/include", "-O3", "-Xptxas", "-v", "--expt-relaxed-constexpr", "-lineinfo")
    log = io.StringIO()
    module = gpu.RawModule(
        code=fresh('extern "C" __global__ void f(int* x) { *x = 1; }'), options=options, backend="nvcc",
        jitify=False, translate_cucomplex=True, enable_cooperative_groups=False,
    )  # fmt: skip
    module.compile(log_stream=log)
    for option in ("-arch=sm_70", "-I/usr/include", "-O3", "-Xptxas -v", "--expt-relaxed-constexpr"):
        assert f"the option '{option}' has no effect" in log.getvalue(), log.getvalue()
    assert "headers={" in log.getvalue()
    assert "backend='nvcc' has no effect" in log.getvalue() and "translate_cucomplex=True" in log.getvalue()
    assert "jitify" not in log.getvalue()
    for wrong in ({"backend": "hiprtc"}, {"jitify": "yes"}, {"arch": "sm_90"}):
        with pytest.raises(hearth.UnsupportedError):
            gpu.RawModule(code="", **wrong)  # type: ignore[arg-type]


@on_cpu
def test_code_of_a_gpu_is_named_by_the_cpu(gpu: hearth.Device) -> None:
    folder = ROOT / "tests" / "unit" / "device" / "compiler" / "device_code"
    cubin, fatbin = (
        zlib.decompress(base64.b85decode(path.read_bytes())) for path in sorted(folder.glob("*.b85"))[::-1]
    )
    host = Path(sys.executable).resolve().read_bytes()
    for code, name in (
        (cubin, "a CUBIN for sm_90"), (cubin[:100], "a damaged CUBIN"), (fatbin, "a fatbin"), (PTX, "PTX for sm_75"),
        (host, "an ELF file of the host"),
    ):  # fmt: skip
        with pytest.raises(hearth.UnsupportedError) as caught:
            gpu.RawModule(code=code).compile()
        message = str(caught.value)
        assert name in message and "CUDA C++ source only" in message and "/proc" not in message and caught.value.fix
