"""Collectives across real processes, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hearth_proto.collectives import REDUCING, ROOTED
from hearthd.device.backend.communicator import CollectiveExchange
from hearthd.device.cpu.collective import shared_segment
from hearthd.device.cpu.collective.shared_exchange import SharedExchange
from hearthd.device.cpu.libraries import DTYPES, OPS
from hearthd.device.cpu.toolchain import find_toolchain
from tests.support.cpu.ranks import (
    Array,
    Ranks,
    address,
    communicator,
    dtype_of,
    expected,
    factor,
    random_data,
    same,
)

COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter",
)  # fmt: skip
IN_PLACE = frozenset(COLLECTIVES) - {"all_to_all"}
SLOT = 512 * 1024
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


@pytest.fixture(scope="module", params=[2, 3, 4])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with communicator(request.param) as group_ranks:
        yield group_ranks


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    with communicator(3) as group_ranks:
        yield group_ranks


class Case:
    """A collective: each rank's buffers, its operation, and the expected contents of its destination."""

    def __init__(
        self,
        ranks: Ranks,
        kind: str,
        inputs: list[Array],
        op: str = "",
        root: int = 0,
        in_place: bool = False,
        skew: int = 0,
    ) -> None:
        n = ranks.count
        self.kind = kind
        self.operations: list[CollectiveExchange] = []
        self._results: list[tuple[Array, Array]] = []
        elements = len(inputs[0]) // (n if kind in {"reduce_scatter", "all_to_all", "scatter"} else 1)
        dtype = inputs[0].dtype
        block = elements * dtype.itemsize
        for rank in range(n):
            expected_array = expected(kind, inputs, rank, op, root)
            gives = kind not in {"broadcast", "scatter"} or rank == root
            source = ranks.array(rank, inputs[rank], skew) if gives and not in_place else None
            source_address = address(source) if source is not None else 0
            to = 0
            if expected_array is not None and (not in_place or not gives):
                into = ranks.array(rank, expected_array.nbytes, skew)
                to = address(into)
            if in_place and gives:
                # The larger of both buffers contains the smaller one at the place that NCCL prescribes.
                if kind in {"all_gather", "gather"} and expected_array is not None:
                    into = ranks.array(rank, expected_array.nbytes, skew)
                    into[rank * block : (rank + 1) * block] = inputs[rank].view(np.uint8)
                    to, source_address = address(into), address(into) + rank * block
                else:
                    block_array = ranks.array(rank, inputs[rank].view(np.uint8), skew)
                    source_address = to = address(block_array)
                    into = block_array
                    if kind in {"reduce_scatter", "scatter"}:
                        into = block_array[rank * block : (rank + 1) * block]
                        to = address(into)
                    if expected_array is None:
                        to = 0
            count = elements
            name = dtype.name
            if kind not in REDUCING:
                count, name = block, "uint8"
            by = factor(rank, dtype).tobytes() if op == "premul_sum" else b""
            self.operations.append(CollectiveExchange(kind, source_address, to, count, name, op, root, factor=by))
            if expected_array is not None:
                self._results.append((into, expected_array))
            elif source is not None:
                self._results.append((source.view(np.uint8), inputs[rank]))  # the source is unchanged

    def check(self) -> None:
        for rank, (result, expected_array) in enumerate(self._results):
            right = same(np.frombuffer(result.tobytes(), expected_array.dtype), expected_array)
            assert right, f"rank {rank}: {self.operations[rank]}"


def run(ranks: Ranks, cases: list[Case]) -> None:
    """Runs all cases as one call, and checks their results."""
    ranks.succeed([[case.operations[rank] for case in cases] for rank in range(ranks.count)])
    for case in cases:
        case.check()


def sources(ranks: Ranks, kind: str, count: int, name: str, seed: int = 0) -> list[Array]:
    generator = np.random.default_rng(seed)
    blocks = ranks.count if kind in {"reduce_scatter", "all_to_all", "scatter"} else 1
    return [random_data(generator, count * blocks, name) for _ in range(ranks.count)]


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_every_type_and_reduction(ranks: Ranks, kind: str) -> None:
    for name in DTYPES:
        ranks.clear()
        inputs = sources(ranks, kind, 201, name)
        cases = [
            Case(ranks, kind, inputs, op, root, in_place, skew)
            for op in (OPS if kind in REDUCING else ("",))
            for root in (range(ranks.count) if kind in ROOTED else (0,))
            for in_place in ((False, True) if kind in IN_PLACE else (False,))
            for skew in (0, 1)
        ]
        run(ranks, cases)


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_any_length_in_chunks(ranks: Ranks, kind: str) -> None:
    share = SLOT // ranks.count // 64 * 64  # part of a slot for each rank
    for name in ("float32", "uint8"):
        size = dtype_of(name).itemsize
        borders = [64 // size, (share if kind in {"reduce_scatter", "all_to_all"} else SLOT) // size]
        for count in [1, *(border + off for border in borders for off in (-1, 0, 1)), 3 * borders[1] + 5]:
            ranks.clear()
            inputs = sources(ranks, kind, count, name, count)
            op = "sum" if kind in REDUCING else ""
            run(ranks, [Case(ranks, kind, inputs, op, 1, in_place) for in_place in (False, kind in IN_PLACE)])


def test_all_to_all_in_place_too(ranks: Ranks) -> None:
    """Checks all_to_all in place, which NCCL does not have: it works here because a chunk of every block is sent before
    one is received."""
    ranks.clear()
    inputs = sources(ranks, "all_to_all", 100_003, "float32")
    run(ranks, [Case(ranks, "all_to_all", inputs, in_place=True)])


def test_every_rank_has_the_same_bits(three: Ranks) -> None:
    """Checks that the bits are equal, with numbers whose sum depends on the order of the ranks."""
    three.clear()
    huge = [np.array([1e30, 1.0], np.float32), np.array([-1e30, 1e-9], np.float32), np.array([1.0, 1e-9], np.float32)]
    out = [three.array(rank, 8) for rank in range(3)]
    arrays = [three.array(rank, huge[rank]) for rank in range(3)]
    three.succeed(
        [[CollectiveExchange("all_reduce", address(arrays[r]), address(out[r]), 2, "float32", "sum")] for r in range(3)]
    )
    assert len({each.tobytes() for each in out}) == 1
    np.testing.assert_array_equal(out[0].view(np.float32), [1.0, (np.float32(1) + np.float32(1e-9)) + np.float32(1e-9)])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", [*FLOAT8, "float16", "bfloat16"])
def test_narrow_floats_are_rounded_as_numpy_does(three: Ranks, name: str, op: str) -> None:
    """Combines all pairs of two 8-bit numbers, and as many pairs of 16-bit ones: infinities, NaNs, the smallest
    numbers, overflows."""
    three.clear()
    dtype = dtype_of(name)
    if dtype.itemsize == 1:
        every = np.arange(256, dtype=np.uint8)
        inputs = [np.repeat(every, 256), np.tile(every, 256), np.tile(every[::-1], 256)]
    else:
        generator = np.random.default_rng(0)
        inputs = [generator.permutation(65536).astype(np.uint16) for _ in range(3)]
    run(three, [Case(three, "all_reduce", [each.view(dtype) for each in inputs], op)])


def test_a_nan_stays_in_the_least_and_the_greatest(three: Ranks) -> None:
    three.clear()
    inputs = [np.array(each, np.float32) for each in ([np.nan, 1, 2, -1], [1, np.nan, 3, 0], [2, 2, np.nan, 1])]
    arrays = [three.array(rank, inputs[rank]) for rank in range(3)]
    for op, last in (("min", -1), ("max", 1)):
        out = [three.array(rank, 16) for rank in range(3)]
        three.succeed(
            [
                [CollectiveExchange("all_reduce", address(arrays[r]), address(out[r]), 4, "float32", op)]
                for r in range(3)
            ]
        )
        np.testing.assert_array_equal(out[1].view(np.float32), [np.nan, np.nan, np.nan, last])


def test_integers_wrap_before_means_are_truncated(three: Ranks) -> None:
    three.clear()
    inputs = [np.array(each, np.int8) for each in ([127, -1, -128], [1, -1, -1], [0, 0, 0])]
    arrays = [three.array(rank, inputs[rank]) for rank in range(3)]
    results = {op: [three.array(rank, 3) for rank in range(3)] for op in ("sum", "mean")}
    three.succeed(
        [
            [
                CollectiveExchange("all_reduce", address(arrays[r]), address(results[op][r]), 3, "int8", op)
                for op in results
            ]
            for r in range(3)
        ]
    )
    np.testing.assert_array_equal(results["sum"][2].view(np.int8), [-128, -2, 127])
    np.testing.assert_array_equal(results["mean"][2].view(np.int8), [-42, 0, 42])


@st.composite
def sequences(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Generates calls of one or more operations."""
    kind = st.sampled_from([*COLLECTIVES, "barrier"])
    operation = st.fixed_dictionaries(
        {
            "kind": kind,
            "count": st.sampled_from([1, 3, 64, 1000, 43_700, 131_072, 131_073]),
            "name": st.sampled_from(["float32", "int64", "bfloat16", "uint8"]),
            "op": st.sampled_from(OPS),
            "root": st.integers(0, 2),
            "in_place": st.booleans(),
        }
    )
    return draw(st.lists(st.lists(operation, min_size=1, max_size=3), min_size=1, max_size=4))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(calls=sequences(), seed=st.integers(0, 1000))
def test_any_sequence_of_operations(three: Ranks, calls: list[list[dict[str, Any]]], seed: int) -> None:
    three.clear()
    lists: list[list[list[CollectiveExchange]]] = []
    cases = []
    for call in calls:
        per_rank: list[list[CollectiveExchange]] = [[], [], []]
        for each in call:
            if each["kind"] == "barrier":
                operations = [CollectiveExchange("barrier")] * 3
            else:
                kind = each["kind"]
                inputs = sources(three, kind, each["count"], each["name"], seed + len(cases))
                op = each["op"] if kind in REDUCING else ""
                root = each["root"] if kind in ROOTED else 0
                case = Case(three, kind, inputs, op, root, each["in_place"] and kind in IN_PLACE)
                cases.append(case)
                operations = case.operations
            for rank in range(3):
                per_rank[rank].append(operations[rank])
        lists.append(per_rank)
    # Ranks do not wait for each other between the calls: each gets its next call when it has finished the last.
    for rank in range(3):
        three.start(rank, lists[0][rank])
    at = [0, 0, 0]
    while any(each < len(lists) for each in at):
        for rank in range(3):
            if at[rank] < len(lists):
                assert three.outcome(rank) == (None, "")
                at[rank] += 1
                if at[rank] < len(lists):
                    three.start(rank, lists[at[rank]][rank])
    for case in cases:
        case.check()


def test_one_rank_alone() -> None:
    descriptor = shared_segment.create(1, find_toolchain())
    end = SharedExchange.attach(descriptor, 0, 1, find_toolchain())
    x = np.arange(200_000, dtype=np.float64)
    for kind in COLLECTIVES:
        y = np.empty_like(x)
        op = "mean" if kind in REDUCING else ""
        operation = CollectiveExchange(kind, address(x), address(y), x.size, "float64", op)
        end.run(end.prepare([operation, CollectiveExchange("barrier")]), 1.0)
        np.testing.assert_array_equal(x, y)
    end.close()
