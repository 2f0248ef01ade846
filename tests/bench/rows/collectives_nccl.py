"""The baseline of `collectives`: NCCL called directly through CuPy, with one process for each GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.bench.rows.collectives import BATCH, JOIN, Case, count, key, share
from tests.bench.stats import Samples
from tests.support.collectives import nccl_ranks

Prepared = tuple[Callable[[], object] | None, list[Any]]


def nccl_side(rank: int, ranks: int, meet: str, plan: list[Case], repeats: int, cuda: bool) -> Samples:
    """Measures one rank; rank 0 writes NCCL's unique id to the file `meet`. Returns seconds for each operation in which
    this rank takes part."""
    identity = nccl_ranks.enter(rank, Path(meet))
    import cupy

    started = time.perf_counter()
    own = Rank(rank, ranks, identity)
    own.barrier()
    measured: Samples = {JOIN: [time.perf_counter() - started]}
    for case in plan:
        operation, arrays = getattr(own, case[0])(case[1])
        cupy.cuda.get_current_stream().synchronize()
        times, samples = count(case, cuda), []
        for repeat in range(repeats + 1):  # the first repeat is a warm-up
            own.barrier()
            if operation is None:
                continue
            started = time.perf_counter()
            if case[0] == "one":
                for _ in range(times):
                    operation()
                    own.finish()
            else:
                for _ in range(times // BATCH if case[0] == "batch" else times):
                    operation()
                own.finish()
            if repeat:
                samples.append((time.perf_counter() - started) / times)
        if samples:
            measured[key(case)] = samples
        del operation, arrays
        cupy.get_default_memory_pool().free_all_blocks()
    own.barrier()
    own.communicator.destroy()
    return measured


class Rank:
    """A communicator and a stream. Each measured operation has a method, which returns the operation (None if this rank
    has no part in it) and the arrays that it uses."""

    def __init__(self, rank: int, ranks: int, identity: Any) -> None:
        import cupy
        from cupy.cuda import nccl

        self.rank, self.ranks = rank, ranks
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._word = cupy.zeros(1, cupy.float32)
        cupy.cuda.get_current_stream().synchronize()
        self.communicator = nccl.NcclCommunicator(ranks, identity, rank)
        self._float32, self._sum = nccl.NCCL_FLOAT32, nccl.NCCL_SUM
        self._group_start, self._group_end = nccl.groupStart, nccl.groupEnd

    def finish(self) -> None:
        self._stream.synchronize()

    def barrier(self) -> None:
        self._reduce(self._word)()
        self.finish()

    def all_reduce(self, size: int) -> Prepared:
        array = _zeros(size // 4)
        return self._reduce(array), [array]

    one = all_reduce

    def batch(self, size: int) -> Prepared:
        arrays = [_zeros(size // 4) for _ in range(BATCH)]
        calls = [self._reduce(array) for array in arrays]

        def together() -> None:
            self._group_start()
            for call in calls:
                call()
            self._group_end()

        return together, arrays

    def all_gather(self, size: int) -> Prepared:
        part = share(size, self.ranks)
        source, target = _zeros(part), _zeros(part * self.ranks)
        arguments = (source.data.ptr, target.data.ptr, part, self._float32, self._stream.ptr)
        return lambda: self.communicator.allGather(*arguments), [source, target]

    def reduce_scatter(self, size: int) -> Prepared:
        part = share(size, self.ranks)
        source, target = _zeros(part * self.ranks), _zeros(part)
        arguments = (source.data.ptr, target.data.ptr, part, self._float32, self._sum, self._stream.ptr)
        return lambda: self.communicator.reduceScatter(*arguments), [source, target]

    def send_recv(self, size: int) -> Prepared:
        if self.rank > 1:
            return None, []
        array = _zeros(size // 4)
        call = self.communicator.send if self.rank == 0 else self.communicator.recv
        arguments = (array.data.ptr, size // 4, self._float32, 1 - self.rank, self._stream.ptr)
        return lambda: call(*arguments), [array]

    def copy(self, size: int) -> Prepared:
        """Prepares CUDA's copy from device 0 to device 1, in the process of device 0."""
        import cupy
        from cupy.cuda import runtime

        if self.rank > 0:
            return None, []
        source = _zeros(size // 4)
        with cupy.cuda.Device(1):
            target = _zeros(size // 4)
            cupy.cuda.get_current_stream().synchronize()
        with suppress(runtime.CUDARuntimeError):  # peer access is enabled already
            runtime.deviceEnablePeerAccess(1)
        arguments = (target.data.ptr, 1, source.data.ptr, 0, size, self._stream.ptr)
        return lambda: runtime.memcpyPeerAsync(*arguments), [source, target]

    def _reduce(self, array: Any) -> Callable[[], object]:
        place = array.data.ptr
        arguments = (place, place, array.size, self._float32, self._sum, self._stream.ptr)
        return lambda: self.communicator.allReduce(*arguments)


def _zeros(elements: int) -> Any:
    import cupy

    return cupy.zeros(elements, cupy.float32)
