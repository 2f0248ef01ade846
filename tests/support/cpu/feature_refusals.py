"""Features that the CPU backend refuses, each with sources for which the compile error names the feature."""

from __future__ import annotations

from tests.support.cpu.feature_table import Refused


def _kernel(body: str, preamble: str = "") -> str:
    return f'{preamble}\nextern "C" __global__ void k(int* out) {{\n    int x = 0; (void)x;\n    {body}\n}}\n'


def _header(name: str) -> str:
    return f"#include <{name}>\n"


_CG = "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;"

REFUSALS = [
    Refused(
        "inline PTX",
        "`asm`, `asm volatile`, `cuda/ptx`",
        "a CUDA built-in function for the instruction (`__laneid` is `threadIdx.x % 32`, `lop3` is `&`, "
        "<code>&#124;</code>, `^`)",
        _kernel('asm volatile("mov.u32 %0, %laneid;" : "=r"(x));'),
        (_kernel('__asm__("nop;");'), _header("cuda/ptx")),
    ),
    Refused(
        "textures and surfaces",
        "`tex1Dfetch`, `tex2D`, `surf2Dwrite`, `cudaTextureObject_t`, `texture<...>`",
        "an array in device memory; `__ldg` if only the cache matters",
        _kernel("x = tex2D<float>(0, 0.f, 0.f);"),
        (
            _kernel("cudaTextureObject_t t;"),
            _kernel("x = tex1Dfetch<int>(0, 1);"),
            _kernel("surf2Dwrite(x, 0, 0, 0);"),
            "texture<float, 2> t;\n",
            _header("texture_fetch_functions.h"),
        ),
    ),
    Refused(
        "tensor cores",
        "`mma.h`, `nvcuda::wmma`",
        "a loop over the tile: `for (k) c += a * b`",
        _header("mma.h"),
        (_kernel("nvcuda::wmma::fill_fragment(x, 0.0f);"),),
    ),
    Refused(
        "bulk asynchronous copies",
        "TMA (`CUtensorMap`), `cuda/ptx`, the `*_tx` functions of `cuda::barrier`",
        "`cuda::memcpy_async`, `cg::memcpy_async`",
        _kernel("const CUtensorMap* m;"),
    ),
    Refused(
        "dynamic parallelism",
        "`kernel<<<...>>>()` within a kernel, `cudaDeviceSynchronize`, `cudaLaunchKernel`",
        "launches from the host, or a graph",
        _kernel("child<<<1, 32>>>(out);", "__global__ void child(int* p) {}"),
        (_kernel("cudaDeviceSynchronize();"),),
    ),
    Refused(
        "thread block clusters",
        "`cg::this_cluster()`, `cluster_group`; a launch with the attribute `cluster` is refused as well",
        "separate blocks that exchange data in device memory; `properties.features` shows whether a device "
        "has clusters",
        _kernel("auto c = cg::this_cluster();", _CG),
    ),
    Refused(
        "launches over several devices",
        "`cg::this_multi_grid()`, `multi_grid_group`",
        "a launch for each device",
        _kernel("cg::this_multi_grid().sync();", _CG),
    ),
    Refused(
        "the CUDA driver API from a kernel",
        "`cudaTypedefs.h`",
        "the host's side of the program",
        _header("cudaTypedefs.h"),
    ),
    Refused(
        "naming an object's section",
        '`__attribute__((section("...")))`, `symver`',
        "leave it out",
        '__attribute__((section(".text"))) __device__ void f() {}\n',
    ),
    Refused(
        "warp functions without _sync",
        "`__shfl`, `__shfl_down`, `__any`, `__all`, `__ballot`; no GPU since Volta has them",
        "the form with `_sync`, and the mask of the lanes that take part",
        _kernel("x = __shfl_down(x, 16);"),
        (_kernel("x = __any(x) + __all(x) + __ballot(x);"),),
    ),
]
