"""Sources that rely on lanes running in lock step, and similar sources that do not. No compiler runs here."""

from __future__ import annotations

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu.translation.declarations import scan
from hearthd.device.cpu.translation.tokens import SourceMap, tokenize
from hearthd.device.cpu.translation.warp_synchronous import Finding, check, warp_synchronous

HEAD = '# 1 "kernel.cu"\n'
KERNEL = """extern "C" __global__ void k(int* in, int* out, int n) {{
int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
{}
}}
"""


def findings(text: str) -> list[Finding]:
    source = SourceMap(HEAD + text)
    tokens = tokenize(source)
    return warp_synchronous(source, tokens, scan(tokens))


def in_kernel(body: str) -> list[Finding]:
    return findings(KERNEL.format(body))


HARRIS = """
template <unsigned blockSize>
__device__ void warpReduce(volatile int* sdata, unsigned tid) {
    if (blockSize >= 64) sdata[tid] += sdata[tid + 32];
    if (blockSize >= 32) sdata[tid] += sdata[tid + 16];
    if (blockSize >= 16) sdata[tid] += sdata[tid + 8];
}
template <unsigned blockSize> __global__ void reduce6(int* in, int* out, unsigned n) {
    extern __shared__ int sdata[];
    unsigned tid = threadIdx.x;
    sdata[tid] = in[tid];
    __syncthreads();
    if (tid < 32) warpReduce<blockSize>(sdata, tid);
    if (tid == 0) out[blockIdx.x] = sdata[0];
}
"""


def test_finding_names_place_reason_and_fix() -> None:
    (found,) = findings(HARRIS)
    assert (found.file, found.line, found.name) == ("kernel.cu", 5, "")
    assert "warpReduce relies on the lanes of a warp running in step" in found.text
    assert "add __syncwarp() between the write of sdata[tid] and the read of sdata[tid + 16]" in found.text
    assert "auto v = sdata[tid + 16]; __syncwarp(); then the write; __syncwarp();" in found.text
    assert found.text.endswith("(also in line 6)")
    assert found.log_line().startswith("kernel.cu(5): warning: warpReduce relies")


@pytest.mark.parametrize(
    "body, read",
    [
        ("volatile __shared__ int s[64]; s[tid] = in[tid]; out[tid] = s[tid ^ 1];", "s[tid ^ 1]"),
        ("__shared__ volatile int s[2][64]; s[0][tid] = 1; out[tid] = s[0][tid + 1];", "s[0][tid + 1]"),
        ("__shared__ int s[64]; volatile int *v = s; v[tid] = 1; if (lane < 16) v[tid] += v[tid + 16];", "v[tid + 16]"),
        ("__shared__ int s[64]; auto v = (volatile int*)(s + 1); v[tid] = 1; out[tid] = v[lane];", "v[lane]"),
        ("__shared__ int s[64]; ((volatile int*)s)[tid] = 1; out[tid] = ((volatile int*)s)[lane];", "s[lane]"),
        ("volatile __shared__ int s[64]; for (int o = 1; o < 32; o *= 2) if (lane >= o) s[tid] += s[tid - o];",
         "s[tid - o]"),
        ("volatile __shared__ int s[4]; if (lane == 0) s[warp] = in[tid]; out[tid] = s[warp];", "s[warp]"),
        ("volatile __shared__ int s[64]; s[tid] = 1; __threadfence_block(); out[tid] = s[31];", "s[31]"),
        ("volatile __shared__ int s[64]; s[threadIdx.x] = 1; out[tid] = s[threadIdx.x + 1];", "s[threadIdx.x + 1]"),
        ("__shared__ int s[64]; s[tid] = 1; __syncthreads(); if (tid < 32) { s[tid] += s[tid + 32];"
         " s[tid] += s[tid + 16]; s[tid] = s[tid] + s[tid + 8]; }", "s[tid + 16]"),
        ("volatile int* g = in; g[tid] += g[tid + 4]; g[tid] += g[tid + 2]; g[tid] += g[tid + 1];", "g[tid + 2]"),
        ("__shared__ int s[64]; s[tid] = 1; __syncthreads();"
         " for (int o = 16; o > 0; o >>= 1) if (tid < o) s[tid] += s[tid + o];", "s[tid + o]"),
    ],
)  # fmt: skip
def test_read_of_another_lanes_slot_is_found(body: str, read: str) -> None:
    (found,) = in_kernel(body)
    assert f"and the read of {read}" in found.text and not found.name


@pytest.mark.parametrize(
    "body",
    [
        "volatile __shared__ int s[64]; s[tid] = 1; __syncwarp(); out[tid] = s[tid ^ 1];",
        "volatile __shared__ int s[64]; s[tid] = 1; __syncthreads(); out[tid] = s[tid ^ 1];",
        "volatile __shared__ int s[64]; s[tid] = 1; cooperative_groups::sync(b); out[tid] = s[tid ^ 1];",
        "volatile __shared__ int s[64]; s[tid] = 1; if (n > 32) __syncthreads(); out[tid] = s[lane];",
        # each thread uses only its own slot
        "volatile __shared__ int s[64]; s[tid] = 1; s[tid] += 2; out[tid] = s[tid];",
        "volatile __shared__ int s[64]; s[2 * tid] = 1; s[2 * tid + 1] = 2; out[tid] = s[2 * tid];",
        "volatile __shared__ int s[64]; if (tid < 32) s[tid] = 1; else out[tid] = s[tid - 32];",  # alternative branches
        "volatile __shared__ int s[64]; if (tid == 0) { s[0] = 1; for (int i = 1; i < 64; ++i) s[i] = s[i - 1]; }",
        "volatile __shared__ int s[64]; if (n == 1) s[tid] = 1; out[tid] = s[tid];",
        "volatile __shared__ int turn; if (tid == 0) turn = 0; __syncthreads(); while (turn != tid) {} turn = tid + 1;",
        "volatile __shared__ int s[64]; atomicAdd((int*)&s[tid], 1); out[tid] = s[tid];",
        "volatile __shared__ int s[64]; for (int i = tid; i < 64; i += 32) s[i] = in[i];",
        "volatile int* g = in; g[tid] = 1; out[tid] = g[tid + 1];",  # not shared memory
        "volatile int own[4]; own[0] = 1; out[tid] = own[n];",
        # memory that is not volatile is reported only if the source clearly is a reduction
        "__shared__ int s[64]; s[tid] = 1; out[tid] = s[tid + 1];",
        "__shared__ int s[64]; s[4 * tid] += s[4 * tid + 2]; s[4 * tid] += s[4 * tid + 1];",
        "__shared__ int s[64]; for (int o = 16; o > 0; o /= 2) { if (tid < o) s[tid] += s[tid + o]; __syncthreads(); }",
        "__shared__ int s[64]; if (tid == 0) for (int o = 16; o > 0; o >>= 1) s[0] += s[0 + o];",
        "__shared__ int s[64]; s[tid] += s[tid + 32]; __syncwarp(); s[tid] += s[tid + 16]; __syncwarp();"
        " s[tid] += s[tid + 8]; __syncwarp();",
    ],
)
def test_source_with_separate_barriers_or_slots_has_no_finding(body: str) -> None:
    assert in_kernel(body) == []


def test_meeting_point_within_a_called_function_counts() -> None:
    text = """
    __device__ void meet() { __syncwarp(); }
    __device__ void between() { meet(); }
    """
    body = "volatile __shared__ int s[64]; s[tid] = 1; {}(); out[tid] = s[tid ^ 1];"
    assert findings(text + KERNEL.format(body.format("between"))) == []
    assert len(findings(text + "__device__ void other() {}\n" + KERNEL.format(body.format("other")))) == 1


def test_reduction_in_a_function_that_is_not_called_here_is_found() -> None:
    body = "".join(f"    s[tid] = min(s[tid], s[tid + {offset}]);\n" for offset in (8, 4, 2, 1))
    (found,) = findings(f"template <class T> __device__ void least(volatile T* s, int tid) {{\n{body}}}\n")
    assert found.line == 3 and "read of s[tid + 4]" in found.text and found.text.endswith("(also in lines 4, 5)")


def test_split_reduction_of_todays_guides_has_no_finding() -> None:
    text = HARRIS
    for offset in (32, 16, 8):
        text = text.replace(
            f"sdata[tid] += sdata[tid + {offset}];",
            f"{{ int v = sdata[tid + {offset}]; __syncwarp(); sdata[tid] += v; __syncwarp(); }}",
        )
    assert "__syncwarp" in text and findings(text) == []


def test_functions_without_sync_are_refused_by_name() -> None:
    found = in_kernel("int v = __shfl_down(in[tid], 16);\nif (__any(v > 0)) out[tid] = __ballot(v);")
    assert [finding.name for finding in found] == ["__shfl_down", "__any", "__ballot"]
    assert [finding.line for finding in found] == [3, 4, 4]
    with pytest.raises(Refusal) as caught:
        check(found)
    assert caught.value.reason is Reason.UNSUPPORTED and "kernel.cu(3)" in caught.value.message
    assert "__shfl_down_sync" in caught.value.fix
    check(findings(HARRIS))  # a possible race is not a reason to refuse


def test_functions_that_the_program_defines_itself_are_its_own() -> None:
    own = "__device__ int __any(int p) { return __any_sync(0xffffffff, p); }\n"
    assert findings(own + KERNEL.format("out[tid] = __any(in[tid]) + g.__all(1);")) == []
