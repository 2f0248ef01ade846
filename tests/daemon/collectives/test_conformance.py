"""Every collective with every dtype on groups of 2, 3 and 4 devices, in several orders, compared with NumPy.

In place and out of place; memory that must not be written is checked as well. On the CPU backend results equal those of
an accumulation in rank order (in float32 for smaller floats), bit for bit. NCCL uses another order, so the last bits of
floats may differ there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hearth
from tests.support.collectives.ranks import several
from tests.support.collectives.values import (
    EIGHT,
    EVERYTHING,
    NUMBERS,
    OPS,
    ORDERS,
    SMALL,
    Arrays,
    Cells,
    N,
    check,
    reduced,
    reducible,
    up,
    values,
)  # fmt: skip
from tests.support.daemon.harness import BACKEND


@pytest.fixture(scope="module")
def devices(cache: Path) -> Iterator[list[hearth.Device]]:
    with several(cache, 4) as daemon, daemon.connect() as node:
        yield node.devices[:4]


@pytest.fixture(params=ORDERS, ids=str)
def group(request: pytest.FixtureRequest, devices: list[hearth.Device]) -> hearth.Group:
    return hearth.Group([devices[ordinal] for ordinal in request.param])


def inputs(
    group: hearth.Group, dtypes: Sequence[np.dtype[Any]], *shape: int, op: str = ""
) -> Iterator[tuple[np.dtype[Any], list[np.ndarray], Arrays]]:
    """Yields each dtype with the inputs of every rank, on the host and on its device."""
    for dtype in dtypes:
        hosts = [values(dtype, shape, rank, op) for rank in range(len(group))]
        yield dtype, hosts, up(group, hosts)


# ---- reductions ----


@pytest.mark.parametrize("op", OPS)
def test_all_reduce(group: hearth.Group, op: str) -> None:
    def cells() -> Cells:
        for dtype, hosts, arrays in inputs(group, reducible(group), N, op=op):
            outs = [gpu.full(N + 2, 1, dtype) for gpu in group.devices]
            group.all_reduce(arrays, op=op, outs=[out[1:-1] for out in outs])
            again = up(group, hosts)
            group.all_reduce(again, op=op)
            result = reduced(op, hosts)
            one = np.ones(1, dtype)
            for rank in range(len(hosts)):
                name = f"{op} {dtype} at {rank}"
                yield name, outs[rank], np.concatenate([one, result, one])
                yield f"{name}, source", arrays[rank], hosts[rank]
                yield f"{name}, in place", again[rank], result

    check(cells())


@pytest.mark.parametrize("op", OPS)
def test_reduce(group: hearth.Group, op: str) -> None:
    def cells() -> Cells:
        for number, (dtype, hosts, arrays) in enumerate(inputs(group, reducible(group), N, op=op)):
            root = number % len(group.devices)
            out = group.reduce(arrays, root=root, op=op)
            again = up(group, hosts)
            group.reduce(again, root=root, op=op, out=again[root])
            yield f"{op} {dtype} to {root}", out, reduced(op, hosts)
            for rank in range(len(hosts)):
                name = f"{op} {dtype} to {root} at {rank}"
                yield name, arrays[rank], hosts[rank]
                yield f"{name}, in place", again[rank], reduced(op, hosts) if rank == root else hosts[rank]

    check(cells())


@pytest.mark.parametrize("op", OPS)
def test_reduce_scatter(group: hearth.Group, op: str) -> None:
    n = len(group.devices)

    def cells() -> Cells:
        for dtype, hosts, arrays in inputs(group, reducible(group), n * N, op=op):
            outs = group.reduce_scatter(arrays, op=op)
            again = up(group, hosts)
            group.reduce_scatter(again, op=op, outs=[a[r * N : (r + 1) * N] for r, a in enumerate(again)])
            result = reduced(op, hosts)
            for rank in range(n):
                name, own = f"{op} {dtype} at {rank}", slice(rank * N, (rank + 1) * N)
                changed = hosts[rank].copy()
                changed[own] = result[own]
                yield name, outs[rank], result[own]
                yield f"{name}, source", arrays[rank], hosts[rank]
                yield f"{name}, in place", again[rank], changed

    check(cells())


def test_nan_and_infinity(group: hearth.Group) -> None:
    """A sum, mean or product with a NaN is NaN; so is a minimum or maximum on the CPU, as in `numpy.minimum`. NCCL
    takes the other number there, like `fmin`."""
    n = len(group.devices)

    def cells() -> Cells:
        for dtype in [each for each in NUMBERS if each.kind in "fV" and each not in EIGHT]:
            hosts = [np.arange(1, 7).astype(dtype) for _ in range(n)]
            hosts[n - 1][0] = np.nan
            hosts[0][1] = np.inf
            hosts[0][2], hosts[1][2] = np.inf, -np.inf
            hosts[1][3] = -np.inf
            for op in OPS:
                arrays = up(group, hosts)
                group.all_reduce(arrays, op=op)
                with np.errstate(invalid="ignore", over="ignore"):
                    expected = reduced(op, hosts)
                    if op in ("min", "max") and BACKEND != "cpu":
                        rows = [host.astype(np.float32) for host in hosts]
                        expected = (np.fmin if op == "min" else np.fmax).reduce(rows).astype(dtype)
                for rank, array in enumerate(arrays):
                    yield f"{op} {dtype} at {rank}", array, expected

    for name, array, expected in list(cells()):
        np.testing.assert_array_equal(
            array.get().astype(np.float64), expected.astype(np.float64), err_msg=name, strict=True
        )


def test_sums_that_are_rounded(group: hearth.Group) -> None:
    """Small floats are accumulated in a wider type: the result is off by at most one rounding (NCCL: one for each
    step), and bit for bit the same on every rank."""
    n = len(group.devices)
    for dtype, digits in [(np.dtype(np.float16), 10), *((each, 7) for each in SMALL if each not in EIGHT)]:
        rng = np.random.default_rng(n)
        hosts = [rng.standard_normal(4001).astype(dtype) for _ in range(n)]
        for op in ("sum", "mean", "prod"):
            arrays = up(group, hosts)
            group.all_reduce(arrays, op=op)
            found = [array.get() for array in arrays]
            assert len({each.tobytes() for each in found}) == 1, (dtype, op)
            rows = np.array([host.astype(np.float64) for host in hosts])
            exact = rows.prod(0) if op == "prod" else rows.sum(0) / (n if op == "mean" else 1)
            largest = abs(rows).prod(0) if op == "prod" else abs(rows).sum(0) / (n if op == "mean" else 1)
            if BACKEND == "cpu":
                limit = abs(exact) * 2.0 ** -(digits + 1) * 1.001 + largest * 2.0**-20 + 2.0**-25
            else:
                limit = n * largest * 2.0**-digits + 2.0**-24
            assert (abs(found[0].astype(np.float64) - exact) <= limit).all(), (dtype, op)


# ---- operations that move data ----


def test_broadcast(group: hearth.Group) -> None:
    n = len(group.devices)

    def cells() -> Cells:
        for number, (dtype, hosts, arrays) in enumerate(inputs(group, EVERYTHING, N)):
            root = number % n
            outs = group.broadcast(arrays, root=root, outs=[gpu.empty(N, dtype) for gpu in group.devices])
            again = up(group, hosts)
            group.broadcast(again, root=root)
            for rank in range(n):
                name = f"{dtype} from {root} at {rank}"
                yield name, outs[rank], hosts[root]
                yield f"{name}, source", arrays[rank], hosts[rank]
                yield f"{name}, in place", again[rank], hosts[root]

    check(cells())


def test_all_gather(group: hearth.Group) -> None:
    n = len(group.devices)

    def cells() -> Cells:
        for dtype, hosts, arrays in inputs(group, EVERYTHING, N):
            outs = group.all_gather(arrays)
            again = [gpu.asarray(np.stack([host] * n)) for gpu, host in zip(group.devices, hosts, strict=True)]
            group.all_gather([each[rank] for rank, each in enumerate(again)], outs=again)
            for rank in range(n):
                yield f"{dtype} at {rank}", outs[rank], np.stack(hosts)
                yield f"{dtype} at {rank}, source", arrays[rank], hosts[rank]
                yield f"{dtype} at {rank}, in place", again[rank], np.stack(hosts)

    check(cells())


def test_all_to_all(group: hearth.Group) -> None:
    n = len(group.devices)

    def cells() -> Cells:
        for dtype, hosts, arrays in inputs(group, EVERYTHING, n, N):
            outs = group.all_to_all(arrays)
            for rank in range(n):
                yield f"{dtype} at {rank}", outs[rank], np.stack([host[rank] for host in hosts])
                yield f"{dtype} at {rank}, source", arrays[rank], hosts[rank]

    check(cells())


def test_gather(group: hearth.Group) -> None:
    n = len(group.devices)

    def cells() -> Cells:
        for number, (dtype, hosts, arrays) in enumerate(inputs(group, EVERYTHING, N)):
            root = number % n
            yield f"{dtype} to {root}", group.gather(arrays, root=root), np.stack(hosts)
            again = group.devices[root].asarray(np.stack([hosts[root]] * n))
            group.gather([*arrays[:root], again[root], *arrays[root + 1 :]], root=root, out=again)
            yield f"{dtype} to {root}, in place", again, np.stack(hosts)
            for rank in range(n):
                yield f"{dtype} at {rank}, source", arrays[rank], hosts[rank]

    check(cells())


def test_scatter(group: hearth.Group) -> None:
    n = len(group.devices)

    def cells() -> Cells:
        for number, dtype in enumerate(EVERYTHING):
            root = number % n
            host = values(dtype, (n, N), root)
            array, again = group.devices[root].asarray(host), group.devices[root].asarray(host)
            outs = group.scatter(array, root=root)
            more = [gpu.empty((1, N), dtype) for gpu in group.devices]
            more[root] = again[root : root + 1]
            group.scatter(again, root=root, outs=more)
            yield f"{dtype} from {root}, source", array, host
            yield f"{dtype} from {root}, in place, source", again, host
            for rank in range(n):
                yield f"{dtype} from {root} at {rank}", outs[rank], host[rank : rank + 1]
                yield f"{dtype} from {root} at {rank}, the root in place", more[rank], host[rank : rank + 1]

    check(cells())


def test_send_and_receive(group: hearth.Group) -> None:
    """Around the ring in one batch, and between two ranks in both directions without a batch."""
    n = len(group.devices)

    def cells() -> Cells:
        for dtype, hosts, arrays in inputs(group, EVERYTHING, N):
            outs = [gpu.empty(N, dtype) for gpu in group.devices]
            with group.batch():
                for rank in range(n):
                    group.send(arrays[rank], (rank + 1) % n)
                    group.recv(outs[rank], (rank - 1) % n)
            there, back = group.devices[n - 1].empty(N, dtype), group.devices[0].empty(N, dtype)
            group.recv(there, 0)
            group.send(arrays[0], n - 1)
            group.send(there, 0)
            group.recv(back, n - 1)
            yield f"{dtype} forth", there, hosts[0]
            yield f"{dtype} back", back, hosts[0]
            for rank in range(n):
                yield f"{dtype} at {rank}", outs[rank], hosts[rank - 1]
                yield f"{dtype} at {rank}, source", arrays[rank], hosts[rank]

    check(cells())


def test_batches(group: hearth.Group) -> None:
    """Batches of all operations together, with barriers in between, and a hand-written exchange of every rank with
    every other."""
    n = len(group.devices)

    def cells() -> Cells:
        for dtype, hosts, arrays in inputs(group, [np.dtype(np.int32), np.dtype(np.float64)], n, N, op="sum"):
            copies = up(group, hosts)
            by_hand = [gpu.empty((n, N), dtype) for gpu in group.devices]
            with group.batch():
                group.all_reduce(copies, op="max")
                group.barrier()
                gathered = group.all_gather(arrays)
                for rank in range(n):
                    for peer in range(n):
                        group.send(arrays[rank][peer], peer)
                        group.recv(by_hand[rank][peer], peer)
                scattered = group.reduce_scatter(arrays, op="sum")
                out = group.reduce(arrays, root=n - 1)
            group.barrier()
            yield f"{dtype} reduce", out, reduced("sum", hosts)
            for rank in range(n):
                yield f"{dtype} all_reduce at {rank}", copies[rank], reduced("max", hosts)
                yield f"{dtype} all_gather at {rank}", gathered[rank], np.stack(hosts)
                yield f"{dtype} by hand at {rank}", by_hand[rank], np.stack([host[rank] for host in hosts])
                yield f"{dtype} reduce_scatter at {rank}", scattered[rank], reduced("sum", hosts)[rank : rank + 1]

    check(cells())


def test_every_size(devices: list[hearth.Device]) -> None:
    """Sizes around a chunk, a page, a cache line and a warp, and zero elements."""
    group = hearth.Group(devices[:3])
    moves: list[tuple[str, Callable[[Arrays], Arrays], Callable[[list[np.ndarray]], list[np.ndarray]]]] = [
        ("all_reduce", group.all_reduce, lambda hosts: [np.add.reduce(hosts)] * 3),
        ("all_gather", group.all_gather, lambda hosts: [np.stack(hosts)] * 3),
        ("reduce_scatter", group.reduce_scatter, lambda hosts: np.split(np.add.reduce(hosts), 3)),
        ("all_to_all", group.all_to_all, lambda hosts: list(np.concatenate([h.reshape(3, -1) for h in hosts], 1))),
    ]
    for size in (0, 1, 3, 31, 64, 65, 1023, 4096, 43_690, 43_691, 43_692, 131_072, 300_001):
        hosts = [np.random.default_rng([size, r]).integers(0, 9, 3 * size).astype(np.float32) for r in range(3)]
        for name, move, expected in moves:
            outs = move(up(group, hosts))
            for rank, out in enumerate(outs):
                wanted = expected(hosts)[rank]
                np.testing.assert_array_equal(out.get().ravel(), wanted.ravel(), err_msg=f"{name} {size} at {rank}")
