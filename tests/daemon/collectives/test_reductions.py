"""Complex numbers in reductions, and premultiplied sums, over a group of `hearth` and one of `hearth.aio`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from tests.support.collectives.ranks import A, B, Ranks, collective, operation, several
from tests.support.collectives.values import up
from tests.support.daemon.harness import DaemonProcess


@pytest.fixture(scope="module")
def three(cache: Path) -> Iterator[DaemonProcess]:
    with several(cache, 3) as process:
        yield process


@pytest.fixture
def group(three: DaemonProcess) -> Iterator[hearth.Group]:
    with three.connect() as node:
        yield hearth.Group([node.devices[ordinal] for ordinal in (2, 0, 1)])


def complex_inputs(group: Any, dtype: str, size: int) -> list[np.ndarray]:
    """Returns each rank's numbers, whose sums are exact in any order."""
    ranks = range(len(group.devices))
    return [(np.arange(size) * (rank + 1) + 1j * (rank - np.arange(size))).astype(dtype) for rank in ranks]


def factors(group: Any) -> list[float]:
    """Returns a factor for each rank: powers of two, so that products are exact."""
    return [2.0 ** (rank % 3 - 1) for rank in range(len(group.devices))]


# ---- complex numbers ----


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers_are_added(group: hearth.Group, dtype: str) -> None:
    n = len(group.devices)
    hosts = complex_inputs(group, dtype, 4 * n)
    total = np.sum(hosts, axis=0)
    scattered = group.reduce_scatter(up(group, hosts))
    root = group.reduce(up(group, hosts), root=n - 1)
    for rank, array in enumerate(group.all_reduce(up(group, hosts))):
        assert array.dtype == dtype
        np.testing.assert_array_equal(array.get(), total)
        np.testing.assert_array_equal(scattered[rank].get(), total[4 * rank : 4 * rank + 4])
    np.testing.assert_array_equal(root.get(), total)
    np.testing.assert_allclose(group.all_reduce(up(group, hosts), op="mean")[0].get(), total / n, rtol=1e-6)
    halves = group.all_reduce(up(group, hosts), op=hearth.premul_sum(0.5))
    np.testing.assert_array_equal(halves[-1].get(), total / 2)


@pytest.mark.parametrize("op", ["prod", "min", "max"])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_other_reductions_of_complex_numbers_are_refused_by_name(group: hearth.Group, op: str, dtype: str) -> None:
    arrays = [gpu.zeros(3, dtype) for gpu in group.devices]
    for reduce in (group.all_reduce, group.reduce, group.reduce_scatter):
        with pytest.raises(hearth.DtypeError, match=f"'{op}'.*{dtype}") as caught:
            reduce(arrays, op=op)  # type: ignore[operator]
        assert "hearth.premul_sum" in caught.value.fix
    group.all_reduce(arrays)
    assert not arrays[0].get().any()


# ---- premultiplied sums ----


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16", "int32", "uint8", "int64"])
def test_elements_are_multiplied_before_they_are_added(group: hearth.Group, dtype: str) -> None:
    n = len(group.devices)
    kind = np.dtype(getattr(pytest.importorskip("ml_dtypes"), dtype, dtype))
    hosts = [(np.arange(3 * n) % 3 + rank % 2).astype(kind) for rank in range(n)]  # totals are exact in every dtype
    for each in ([3] * n, [1 + rank % 3 for rank in range(n)]):
        total = np.sum([host.astype(np.float64) * by for host, by in zip(hosts, each, strict=True)], axis=0).astype(
            kind
        )
        op = hearth.premul_sum(each if len(set(each)) > 1 else each[0])
        arrays = up(group, hosts)
        scattered = group.reduce_scatter(arrays, op=op)
        root = group.reduce(arrays, root=1, op=op)
        for rank, array in enumerate(arrays):
            np.testing.assert_array_equal(array.get(), hosts[rank])
        for rank, array in enumerate(group.all_reduce(arrays, op=op)):
            np.testing.assert_array_equal(array.get(), total)
            np.testing.assert_array_equal(scattered[rank].get(), total[3 * rank : 3 * rank + 3])
        np.testing.assert_array_equal(root.get(), total)


def test_factors_of_a_batch(group: hearth.Group) -> None:
    """Several factors, dtypes and kinds in one NCCL group."""
    ones, threes = [[gpu.full(70_001, value, np.float32) for gpu in group.devices] for value in (1, 3)]
    doubles = [gpu.full(5, 2, np.float64) for gpu in group.devices]
    with group.batch():
        group.all_reduce(ones, op=hearth.premul_sum(0.25))
        group.all_reduce(threes, op=hearth.premul_sum(factors(group)))
        group.all_reduce(doubles, op=hearth.premul_sum(0.25))
    n, weights = len(group.devices), sum(factors(group))
    for rank in range(n):
        assert set(ones[rank].get()) == {0.25 * n}
        assert set(threes[rank].get()) == {3 * weights}
        assert set(doubles[rank].get()) == {0.5 * n}


@pytest.mark.parametrize(
    ("dtype", "factor", "named"),
    [
        ("float32", "half", "'half'"),
        ("float32", 1j, "1j"),
        ("complex64", 1j, "1j"),
        ("int32", 0.5, "0.5"),
        ("uint8", -1, "-1"),
        ("int8", 300, "300"),
        ("int8", float("nan"), "nan"),
        ("float32", 1e40, r"1e\+40"),
        ("complex64", -1e40, r"-1e\+40"),
        ("float16", [1.0, 1e5, 1.0], "100000.0"),
        ("float8_e4m3fn", float("inf"), "inf"),
        ("float32", [[1.0]], r"\[\[1.0\]\]"),
        ("float32", [1.0] * 9, "9 factors"),
        ("float32", None, "None"),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_invalid_factors_are_refused_by_the_client(group: hearth.Group, dtype: str, factor: Any, named: str) -> None:
    if dtype.startswith("float8"):
        pytest.importorskip("ml_dtypes")
    arrays = [gpu.zeros(4, dtype) for gpu in group.devices]
    with pytest.raises(hearth.ArgumentError, match=named) as caught:
        group.all_reduce(arrays, op=hearth.premul_sum(factor))
    assert caught.value.fix
    group.all_reduce([gpu.zeros(4) for gpu in group.devices])
    for array in arrays:
        assert not array.get().any()


def test_infinite_factors_of_floats_are_accepted(group: hearth.Group) -> None:
    arrays = [gpu.ones(4, np.float16) for gpu in group.devices]
    group.all_reduce(arrays, op=hearth.premul_sum(float("inf")))
    assert np.isinf(arrays[0].get()).all()


def test_premultiplied_sum_without_a_factor_is_refused(group: hearth.Group) -> None:
    with pytest.raises(hearth.ArgumentError, match="premul_sum") as caught:
        group.all_reduce([gpu.zeros(4) for gpu in group.devices], op="premul_sum")
    assert "hearth.premul_sum(factor)" in caught.value.fix


def test_asyncio(three: DaemonProcess) -> None:
    async def main() -> None:
        async with hearth.aio.connect(three.unix) as node:
            group = hearth.aio.Group(node.devices[:3])
            hosts = complex_inputs(group, "complex64", 6)
            arrays = [gpu.asarray(host) for gpu, host in zip(group.devices, hosts, strict=True)]
            ones = [gpu.ones(4) for gpu in group.devices]
            group.all_reduce(arrays)
            group.all_reduce(ones, op=hearth.premul_sum([1, 2, 4]))
            np.testing.assert_array_equal(await arrays[1].get(), np.sum(hosts, axis=0))
            np.testing.assert_array_equal(await ones[2].get(), np.full(4, 7))
            with pytest.raises(hearth.DtypeError, match="complex64"):
                group.all_reduce(arrays, op="max")

    asyncio.run(main())


# ---- the protocol ----


@pytest.mark.parametrize("op", [c.REDUCE_OP_PREMUL_SUM, c.REDUCE_OP_SUM])
@pytest.mark.parametrize("factor", [b"", b"\0\0", b"\0" * 8])
def test_factor_of_another_size_is_refused(three: DaemonProcess, op: Any, factor: bytes) -> None:
    if op == c.REDUCE_OP_SUM and not factor:
        pytest.skip("a sum has no factor")
    with Ranks(three, 2) as ranks:
        wrong = operation("all_reduce", A, B, op=op, factor=factor)
        for rank in (0, 1):
            ranks.streams[rank].batch(collective((0, 1), 1, wrong))
        for rank in (0, 1):
            refusal = ranks.failure(rank)
            assert refusal.reason is Reason.INVALID_ARGUMENT and "factor" in refusal.message and refusal.fix


def test_ranks_with_different_factors(three: DaemonProcess) -> None:
    with Ranks(three, 2) as ranks:
        for rank in (0, 1):
            factor = np.float32(10**rank).tobytes()
            own = operation("all_reduce", A, B, op=c.REDUCE_OP_PREMUL_SUM, factor=factor)
            ranks.streams[rank].batch(collective((0, 1), 1, own))
        assert set(ranks.data(0, B)) == set(ranks.data(1, B)) == {1 * 1 + 2 * 10}
