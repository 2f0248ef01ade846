"""Kernels and messages for the tests of dispatch."""

from __future__ import annotations

from typing import Any

import pytest

from hearth.kernels.base_pending_dispatch import Job
from hearth_proto.v1 import commands_pb2 as c

KERNELS = r"""
#define AT int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return
extern "C" __global__ void identity(const int* in, int* out, int n) { AT; out[i] = in[i]; }
extern "C" __global__ void broadcast(int value, int* out, int n) { AT; out[i] = value; }
extern "C" __global__ void total(const unsigned* in, unsigned* out, int n) { AT; atomicAdd(out, in[i]); }
extern "C" __global__ void triple(unsigned* x, int n) { AT; x[i] *= 3; }
extern "C" __global__ void axpy(double a, const float* x, const float* y, float* out, int n) {
    AT; out[i] = (float)a * x[i] + y[i];
}
extern "C" __global__ void accumulate(const int* x, int* sum, int n) { AT; sum[i] += x[i]; }
extern "C" __global__ void every_other(int* out, int n) { AT; if (i % 2) out[i] = i; }
extern "C" __global__ void reverse(const int* in, int* out) {
    extern __shared__ int s[];
    __shared__ int offset;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x == 0) offset = 1000 * blockIdx.x;
    s[threadIdx.x] = in[i];
    __syncthreads();
    out[i] = s[blockDim.x - 1 - threadIdx.x] + offset;
}
struct pair { int a; double b; };
extern "C" __global__ void sizes(struct pair p, char small, double* out) { out[0] = p.a; out[1] = p.b; out[2] = small; }
"""
SPIN = r"""
extern "C" __global__ void spin(long long ticks, int* out) {
    long long start = clock64();
    while (clock64() - start < ticks) {}
    out[0] = 1;
}
"""
B = c.Binding
ONE = c.Dim3(x=1)


def blocks(n: int, threads: int = 64) -> int:
    """Returns the number of blocks for n threads."""
    return -(-n // threads)


def binding(role: Any, **fields: Any) -> c.Binding:
    return c.Binding(role=role, **fields)


def value(**fields: Any) -> c.Binding:
    return c.Binding(role=B.ROLE_VALUE, value=c.Argument(**fields))


def carried_jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Returns a list that records each dispatch whose bytes a thread begins to transfer."""
    jobs: list[Job] = []
    carry = Job.run

    def carrying(job: Job) -> None:
        jobs.append(job)
        carry(job)

    monkeypatch.setattr(Job, "run", carrying)
    return jobs
