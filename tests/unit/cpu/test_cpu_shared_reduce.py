"""All-reduce across real processes."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu.module import load_runtime
from hearthd.device.cpu.shared_reduce import DTYPES, OPS, SharedReduce

RANKS = 3


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def data(rank: int, count: int, name: str) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rank).uniform(-9 if not name.startswith("u") else 1, 9, count).astype(dtype_of(name))


def expected(count: int, name: str, op: str) -> np.ndarray[Any, Any]:
    wide = np.float64 if name == "float64" else np.float32 if "float" in name else np.int64
    inputs = [data(rank, count, name).astype(wide) for rank in range(RANKS)]
    total = inputs[0]
    for other in inputs[1:]:
        total = {"min": np.minimum, "max": np.maximum, "prod": np.multiply}.get(op, np.add)(total, other)
    if op == "mean":
        total = total / wide(RANKS) if "float" in name else np.trunc(total / RANKS).astype(wide)
    return total.astype(dtype_of(name))


def serve(pipe: multiprocessing.connection.Connection, descriptor: bytes, rank: int) -> None:
    """A rank in a process of its own: does what it is told, and reports the outcome."""
    end = SharedReduce.attach(descriptor, rank, RANKS)
    while True:
        try:
            count, name, op, timeout_s = pipe.recv()
        except EOFError:
            os._exit(0)
        pipe.send(outcome(end, rank, count, name, op, timeout_s))


def outcome(end: SharedReduce, rank: int, count: int, name: str, op: str, timeout_s: float) -> Any:
    src = data(rank, count, name)
    dst = src if op == "max" else np.empty_like(src)  # in place, too
    try:
        end.all_reduce(src.ctypes.data, dst.ctypes.data, count, name, op, timeout_s)
    except Refusal as error:
        return error.reason, error.message
    return dst.tobytes()


@pytest.fixture
def ranks() -> Iterator[tuple[SharedReduce, list[Callable[..., None]], list[multiprocessing.connection.Connection]]]:
    load_runtime()
    context = multiprocessing.get_context("fork")
    descriptor = SharedReduce.create(RANKS)
    pipes, processes = [], []
    for rank in range(1, RANKS):
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, descriptor, rank), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    end = SharedReduce.attach(descriptor, 0, RANKS)
    yield end, [pipe.send for pipe in pipes], pipes
    end.close()
    for process in processes:
        process.kill()
        process.join()


def test_every_type_and_operation(ranks: Any) -> None:
    end, sends, pipes = ranks
    for name in DTYPES:
        for op in OPS:
            for send in sends:
                send((1000, name, op, 20.0))
            mine = outcome(end, 0, 1000, name, op, 20.0)
            results = [mine, *(pipe.recv() for pipe in pipes)]
            assert results[0] == results[1] == results[2], (name, op)
            got = np.frombuffer(mine, dtype_of(name)).astype(np.float64)
            np.testing.assert_allclose(
                got, expected(1000, name, op).astype(np.float64), rtol=1e-6, err_msg=f"{name} {op}"
            )


@pytest.mark.parametrize("count", [0, 1, 7, 131072, 131073, 1_000_003])
def test_any_length_in_chunks(ranks: Any, count: int) -> None:
    end, sends, pipes = ranks
    for send in sends:
        send((count, "float32", "sum", 20.0))
    mine = outcome(end, 0, count, "float32", "sum", 20.0)
    assert all(pipe.recv() == mine for pipe in pipes)
    np.testing.assert_array_equal(np.frombuffer(mine, np.float32), expected(count, "float32", "sum"))


def test_a_rank_that_never_comes_is_named(ranks: Any) -> None:
    end, sends, pipes = ranks
    sends[0]((10, "int32", "sum", 20.0))
    reason, message = outcome(end, 0, 10, "int32", "sum", 0.3)
    assert reason is Reason.COLLECTIVE_TIMEOUT and "rank 2" in message
    assert pipes[0].recv()[0] is Reason.COMMUNICATOR_FAILED  # told at once, not after its own 20 s
    assert outcome(end, 0, 10, "int32", "sum", 5.0)[0] is Reason.COMMUNICATOR_FAILED


def test_a_mismatch_is_an_error_on_every_rank(ranks: Any) -> None:
    end, sends, pipes = ranks
    sends[0]((10, "int32", "sum", 20.0))
    sends[1]((10, "int32", "max", 20.0))
    outcomes = [outcome(end, 0, 10, "int32", "sum", 20.0), *(pipe.recv() for pipe in pipes)]
    assert {each[0] for each in outcomes} <= {Reason.COLLECTIVE_MISMATCH, Reason.COMMUNICATOR_FAILED}
    assert Reason.COLLECTIVE_MISMATCH in {each[0] for each in outcomes}


def test_abort_from_another_thread(ranks: Any) -> None:
    end, _, _ = ranks
    threading.Timer(0.2, end.abort).start()
    begun = time.monotonic()
    assert outcome(end, 0, 10, "int32", "sum", 30.0)[0] is Reason.COMMUNICATOR_FAILED
    assert time.monotonic() - begun < 5


def test_close_ends_a_waiting_call(ranks: Any) -> None:
    end, _, _ = ranks
    threading.Timer(0.2, end.close).start()
    assert outcome(end, 0, 10, "int32", "sum", 30.0)[0] is Reason.COMMUNICATOR_FAILED
    end.close()
    end.abort()


def test_one_rank_alone() -> None:
    descriptor = SharedReduce.create(1)
    end = SharedReduce.attach(descriptor, 0, 1)
    x = np.arange(5, dtype=np.float64)
    end.all_reduce(x.ctypes.data, x.ctypes.data, 5, "float64", "mean", 1.0)
    np.testing.assert_array_equal(x, np.arange(5))
    end.close()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(Refusal):
        SharedReduce.create(0)
    descriptor = SharedReduce.create(2)
    with pytest.raises(Refusal) as caught:
        SharedReduce.attach(descriptor, 0, 3)
    assert caught.value.reason is Reason.COMMUNICATOR_FAILED
    with pytest.raises(Refusal):
        SharedReduce.attach(descriptor, 2, 2)
    end = SharedReduce.attach(descriptor, 0, 2)
    with pytest.raises(Refusal, match="complex64"):
        end.all_reduce(0, 0, 1, "complex64", "sum", 1.0)
    end.close()
    with pytest.raises(Refusal) as caught:
        SharedReduce.attach(descriptor, 1, 2)
    assert caught.value.reason is Reason.COMMUNICATOR_FAILED
