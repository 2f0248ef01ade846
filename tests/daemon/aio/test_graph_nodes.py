"""Pinned copies, arrays and conditional nodes in graphs that are captured in an event loop."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import hearth
import hearth.aio
from hearth.transport import memory_segments
from tests.support.daemon.harness import DaemonProcess

N = 64
SOURCE = r"""
extern "C" __global__ void add(int* x, int value) { x[threadIdx.x] += value; }
extern "C" __global__ void count_down(int* left, cudaGraphConditionalHandle handle) {
    cudaGraphSetConditional(handle, --*left > 0);
}
"""


@pytest.mark.skipif(not memory_segments.possible(), reason="needs memfd")
def test_pinned_copies(daemon: DaemonProcess) -> None:
    """A copy to pinned memory is awaited until it is recorded. A copy from it is recorded in a thread, if the memory is
    not shared with the device yet."""

    async def program() -> None:
        source, target = hearth.zeros_pinned(1 << 15, np.int32), hearth.zeros_pinned(1 << 15, np.int32)
        async with hearth.aio.connect(daemon.unix) as node:
            gpu = node.device(0)
            add = gpu.RawKernel(SOURCE, "add")
            x = gpu.zeros(N, np.int32)
            async with gpu.graph() as graph:
                with pytest.raises(hearth.LaunchError, match="before the memory is shared") as caught:
                    x.set(source[:N])
                assert "asyncio.to_thread" in caught.value.fix
                await asyncio.to_thread(x.set, source[:N])
                temporary = x.copy()
                add(1, N, (temporary, 1))
                temporary.set(source[N : 2 * N])  # the memory is shared now
                add(1, N, (temporary, 2))
                await temporary.get(out=target[:N], blocking=False)
                with pytest.raises(hearth.LaunchError, match="read on stream"):
                    await temporary.get()
            assert [node.kind for node in graph.nodes] == ["write", "copy", "kernel", "write", "kernel", "read"]
            source[:N], source[N:] = 10, 20
            graph.launch()
            await gpu.synchronize()
            assert (target[:N] == 22).all() and (await x.get() == 10).all()

    asyncio.run(program())


def test_conditions(daemon: DaemonProcess) -> None:
    async def program() -> None:
        async with hearth.aio.connect(daemon.unix) as node:
            gpu = node.device(0)
            module = gpu.RawModule(code=SOURCE)
            add, count_down = module.get_function("add"), module.get_function("count_down")
            x = gpu.zeros((), np.int32)
            async with gpu.graph() as graph:
                left, condition = gpu.full((), 5, np.int32), gpu.full((), 1, np.uint32)
                with graph.while_(condition):
                    add(1, 1, (x, 3))
                    count_down(1, 1, (left, condition))
                with graph.if_(left):
                    add(1, 1, (x, 1000))
            graph.launch(2)
            assert await x.item() == 30

    asyncio.run(program())


def test_branches(daemon: DaemonProcess) -> None:
    async def program() -> None:
        async with hearth.aio.connect(daemon.unix) as node:
            gpu = node.device(0)
            add = gpu.RawModule(code=SOURCE).get_function("add")
            x, value = gpu.zeros((), np.int32), gpu.zeros((), np.uint32)
            async with gpu.graph() as graph:
                with graph.switch_(value):
                    with graph.case_(1):
                        add(1, 1, (x, 1))
                    with graph.case_(4):
                        add(1, 1, (x, 10))
                with graph.if_(value):
                    add(1, 1, (x, 100))
                with graph.else_():
                    add(1, 1, (x, 1000))
            for number in (0, 1, 2, 4):
                value.fill(number)
                graph.launch()
            assert await x.item() == 1311

    asyncio.run(program())
