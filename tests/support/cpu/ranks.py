"""The ranks of a communicator as processes, whose buffers are in memory shared with the test."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.communicator import CollectiveExchange
from hearthd.device.cpu.collective import shared_segment
from hearthd.device.cpu.collective.shared_exchange import SharedExchange
from hearthd.device.cpu.toolchain import find_toolchain

ARENA = 48 << 20
TIMEOUT_S = 60.0
Array = np.ndarray[Any, Any]
Outcome = tuple[Reason | None, str]


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def serve(pipe: multiprocessing.connection.Connection) -> None:
    """Runs a rank in a separate process: executes the orders from `pipe` and reports each outcome. An order to abort
    may arrive while another one runs."""
    end: SharedExchange | None = None

    def run(operations: Sequence[CollectiveExchange], timeout_s: float) -> None:
        assert end is not None
        pipe.send("begun")
        try:
            end.run(end.prepare(operations), timeout_s)
        except Refusal as refusal:
            pipe.send((refusal.reason, refusal.message))
        else:
            pipe.send((None, ""))

    while True:
        try:
            order, *arguments = pipe.recv()
        except EOFError:
            os._exit(0)
        if order == "join":
            if end is not None:
                end.close()
            end = SharedExchange.attach(*arguments, find_toolchain())
            pipe.send("joined")
        elif order == "abort":
            assert end is not None
            end.abort()
        else:
            threading.Thread(target=run, args=arguments).start()


class Ranks:
    """A communicator of `count` ranks. A rank's buffers come from its arena, which has the same address in the test and
    in the rank's process."""

    def __init__(self, count: int) -> None:
        shared_segment.library(find_toolchain())  # builds the library once, instead of once in each of the processes
        for thread in threading.enumerate():
            # started for the communicators of another test: after a fork its locks would stay locked forever
            if thread.name == "exchange build":
                thread.join()
        self.count = count
        self._maps = [mmap.mmap(-1, ARENA) for _ in range(count)]
        self._arenas = [np.frombuffer(memory_map, np.uint8) for memory_map in self._maps]
        self._used = [0] * count
        context = multiprocessing.get_context("fork")
        self.pipes: list[multiprocessing.connection.Connection] = []
        self.processes: list[Any] = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        self.join()

    def join(self) -> None:
        """Creates a new communicator of the same processes."""
        self.descriptor = shared_segment.create(self.count, find_toolchain())
        for rank, pipe in enumerate(self.pipes):
            pipe.send(("join", self.descriptor, rank, self.count))
        for pipe in self.pipes:
            assert pipe.recv() == "joined"
        shared_segment.release(self.descriptor)

    def clear(self) -> None:
        self._used = [0] * self.count

    def array(self, rank: int, data: Array | int, skew: int = 0) -> Array:
        """Returns a buffer of the rank with a copy of the data, or with that number of bytes, which begins `skew` bytes
        after the start of a cache line."""
        size = data if isinstance(data, int) else data.nbytes
        begin = (self._used[rank] + 63) // 64 * 64 + skew
        self._used[rank] = begin + size
        assert self._used[rank] <= ARENA
        buffer = self._arenas[rank][begin : begin + size]
        if isinstance(data, int):
            buffer[:] = 0xAB
            return buffer
        buffer[:] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        return buffer.view(data.dtype) if skew % data.itemsize == 0 else buffer

    def start(self, rank: int, operations: Sequence[CollectiveExchange], timeout_s: float = TIMEOUT_S) -> None:
        """Starts the operations on a rank; returns when the rank is about to execute them."""
        self.pipes[rank].send(("run", list(operations), timeout_s))
        assert self.pipes[rank].recv() == "begun"

    def outcome(self, rank: int) -> Outcome:
        assert self.pipes[rank].poll(TIMEOUT_S), f"rank {rank} hangs"
        result: Outcome = self.pipes[rank].recv()
        return result

    def run(self, lists: Sequence[Sequence[CollectiveExchange]], timeout_s: float = TIMEOUT_S) -> list[Outcome]:
        """Executes each rank's list as one call; returns the outcomes."""
        for pipe, operations in zip(self.pipes, lists, strict=True):
            pipe.send(("run", list(operations), timeout_s))
        for pipe in self.pipes:
            assert pipe.recv() == "begun"
        return [self.outcome(rank) for rank in range(self.count)]

    def succeed(self, lists: Sequence[Sequence[CollectiveExchange]]) -> None:
        assert self.run(lists) == [(None, "")] * self.count

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.close()
            process.kill()
            process.join()
            process.close()


@contextlib.contextmanager
def communicator(count: int) -> Iterator[Ranks]:
    ranks = Ranks(count)
    try:
        yield ranks
    finally:
        ranks.close()


def address(array: Array) -> int:
    return int(array.ctypes.data)


# ---- expected results ----


def random_data(generator: np.random.Generator, count: int, name: str) -> Array:
    """Returns random numbers: floats of which a few can be added and multiplied within the dtype's range, or integers
    of the full range."""
    dtype = dtype_of(name)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return generator.integers(info.min, info.max, count, dtype, endpoint=True)
    return generator.uniform(-3, 3, count).astype(dtype)


def factor(rank: int, dtype: np.dtype[Any]) -> Array:
    """Returns the factor by which a rank multiplies in a premultiplied sum."""
    return np.array((3, 1, 5, 2)[rank % 4]).astype(dtype)


def reduced(inputs: Sequence[Array], op: str) -> Array:
    """Reduces in rank order, computed in float32 or float64, or in integers that wrap; rounded once at the end."""
    dtype = inputs[0].dtype
    if dtype.kind in "iu":
        wide: Any = np.int64 if dtype.kind == "i" else np.uint64
    else:
        wide = np.float64 if dtype == np.float64 else np.float32
    with np.errstate(all="ignore"):
        if op == "premul_sum":  # each product is rounded
            inputs = [(x.astype(wide) * factor(r, dtype).astype(wide)).astype(dtype) for r, x in enumerate(inputs)]
        total = inputs[0].astype(wide)
        for value in inputs[1:]:
            addend = value.astype(wide)
            combine = {"min": np.minimum, "max": np.maximum, "prod": np.multiply}.get(op, np.add)
            total = combine(total, addend)
        if op == "mean" and dtype.kind in "iu":
            cut = [abs(int(value)) // len(inputs) * (1 if value >= 0 else -1) for value in total.astype(dtype)]
            total = np.array(cut, dtype=wide)
        elif op == "mean":
            total = total / wide(len(inputs))
        return total.astype(dtype)


def expected(kind: str, inputs: Sequence[Array], rank: int, op: str, root: int) -> Array | None:
    """Returns the expected contents of the destination of `rank`, computed from the sources of all ranks; None if the
    rank has no destination."""
    ranks = len(inputs)
    if kind in {"all_reduce", "reduce"}:
        return reduced(inputs, op) if kind == "all_reduce" or rank == root else None
    if kind == "broadcast":
        return inputs[root]
    if kind in {"all_gather", "gather"}:
        return np.concatenate(inputs) if kind == "all_gather" or rank == root else None
    if kind == "reduce_scatter":
        return np.split(reduced(inputs, op), ranks)[rank]
    if kind == "all_to_all":
        return np.concatenate([np.split(source, ranks)[rank] for source in inputs])
    assert kind == "scatter"
    return np.split(inputs[root], ranks)[rank]


def same(got: Array, expected: Array) -> bool:
    """Returns whether the arrays are equal, apart from the bits of a NaN and the sign of a zero."""
    if got.dtype.kind in "iu":
        return np.array_equal(got, expected)
    return np.array_equal(got.astype(np.float64), expected.astype(np.float64), equal_nan=True)
