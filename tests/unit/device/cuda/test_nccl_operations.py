"""Collectives as NCCL calls, executed on host memory by a model of NCCL and compared with NumPy."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.communicator import CollectiveExchange
from hearthd.device.cuda.nccl_operations import BYTES, DTYPES, OPS, Call, calls, check, describe, operators, reducible

KINDS = (
    "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "barrier",
)  # fmt: skip
SCRATCH = 64
"""Address of the scratch memory; memory below it must not be accessed."""
START = 4096
SIZE = 1 << 16
REDUCTIONS: dict[int, Any] = {
    OPS["sum"]: np.add.reduce,
    OPS["prod"]: np.multiply.reduce,
    OPS["max"]: np.maximum.reduce,
    OPS["min"]: np.minimum.reduce,
}


class Nccl:
    """Model of ncclGroupEnd of all ranks together: sends and receives of two ranks pair in the order of the calls, and
    so do the other calls, which must be the same on all ranks. Reads all sources before it writes any destination."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.memory = [np.zeros(SIZE, np.uint8) for _ in range(ranks)]
        self._writes: list[tuple[int, int, np.ndarray]] = []

    def read(self, rank: int, address: int, size: int) -> np.ndarray:
        assert address >= SCRATCH and address + size <= SIZE
        return self.memory[rank][address : address + size].copy()

    def group(self, made: list[list[Call]]) -> None:
        sent: dict[tuple[int, int], deque[np.ndarray]] = defaultdict(deque)
        collective: list[list[Call]] = [[] for _ in range(self.ranks)]
        for rank, own in enumerate(made):
            for name, arguments in own:
                if name == "send":
                    source, count, dtype, peer = arguments
                    assert dtype == BYTES and count > 0
                    sent[rank, peer].append(self.read(rank, source, count))
                elif name != "recv":
                    collective[rank].append((name, arguments))
        for rank, own in enumerate(made):
            for name, arguments in own:
                if name == "recv":
                    destination, count, dtype, peer = arguments
                    data = sent[peer, rank].popleft()
                    assert dtype == BYTES and len(data) == count
                    self._writes.append((rank, destination, data))
        assert not any(sent.values()), "a send without its receive"
        for together in zip(*collective, strict=True):
            assert len({(name, arguments[2:]) for name, arguments in together}) == 1
            getattr(self, together[0][0])([arguments for _, arguments in together])
        for rank, destination, data in self._writes:
            assert destination >= SCRATCH and destination + data.size <= SIZE
            self.memory[rank][destination : destination + data.size] = data
        self._writes.clear()

    def _reduced(self, arguments: list[tuple[int, ...]], factor: int = 1) -> np.ndarray:
        _, _, count, dtype, op = arguments[0][:5]
        assert dtype == DTYPES["int32"]
        parts = [self.read(rank, each[0], 4 * count * factor).view(np.int32) for rank, each in enumerate(arguments)]
        return np.ascontiguousarray(REDUCTIONS[op](parts)).astype(np.int32).view(np.uint8)

    def allReduce(self, arguments: list[tuple[int, ...]]) -> None:
        result = self._reduced(arguments)
        self._writes += [(rank, each[1], result) for rank, each in enumerate(arguments)]

    def reduce(self, arguments: list[tuple[int, ...]]) -> None:
        root = arguments[0][5]
        self._writes.append((root, arguments[root][1], self._reduced(arguments)))

    def reduceScatter(self, arguments: list[tuple[int, ...]]) -> None:
        parts = np.split(self._reduced(arguments, self.ranks), self.ranks)
        self._writes += [(rank, each[1], parts[rank]) for rank, each in enumerate(arguments)]

    def broadcast(self, arguments: list[tuple[int, ...]]) -> None:
        _, _, count, dtype, root = arguments[0]
        assert dtype == BYTES
        data = self.read(root, arguments[root][0], count)
        self._writes += [(rank, each[1], data) for rank, each in enumerate(arguments)]

    def allGather(self, arguments: list[tuple[int, ...]]) -> None:
        assert arguments[0][3] == BYTES
        data = np.concatenate([self.read(rank, each[0], each[2]) for rank, each in enumerate(arguments)])
        self._writes += [(rank, each[1], data) for rank, each in enumerate(arguments)]


class Program:
    """Operations of all ranks, with their initial and their expected memory."""

    def __init__(self, ranks: int, seed: int) -> None:
        self.nccl = Nccl(ranks)
        self.ranks = ranks
        self.operations: list[list[CollectiveExchange]] = [[] for _ in range(ranks)]
        self._expected: list[tuple[int, int, np.ndarray]] = []
        self._random = np.random.default_rng(seed)
        self._next = START

    def _place(self, size: int) -> int:
        self._next += size + 16
        assert self._next < SIZE
        return self._next - size

    def _fill(self, rank: int, address: int, size: int) -> np.ndarray:
        data = self._random.integers(1, 120, size, dtype=np.uint8)
        self.nccl.memory[rank][address : address + size] = data
        return data

    def add(self, kind: str, count: int, root: int, op: str, in_place: bool) -> None:
        n = self.ranks
        reducing = kind in {"all_reduce", "reduce", "reduce_scatter"}
        unit = count * (4 if reducing else 1)
        sizes = {
            "reduce_scatter": (n, 1),
            "all_gather": (1, n),
            "all_to_all": (n, n),
            "gather": (1, n),
            "scatter": (n, 1),
        }
        reads, writes = sizes.get(kind, (1, 1))
        data = []
        for rank in range(n):
            source, destination = self._place(reads * unit), self._place(writes * unit)
            if in_place and kind != "all_to_all":
                if writes > reads:
                    source = destination + rank * unit
                else:
                    destination = source + (rank * unit if reads > writes else 0)
            data.append(self._fill(rank, source, reads * unit))
            if kind in {"reduce", "gather"} and rank != root:
                destination = 0
            if kind in {"broadcast", "scatter"} and rank != root:
                source = 0
            if kind == "broadcast" and rank == root and in_place:
                destination = 0
            if kind == "barrier":
                source = destination = 0
            exchange = CollectiveExchange(kind, source, destination, count, root=root)
            self.operations[rank].append(replace(exchange, dtype="int32", op=op) if reducing else exchange)
        self._expect(kind, data, unit, root, op)

    def _expect(self, kind: str, data: list[np.ndarray], unit: int, root: int, op: str) -> None:
        n = self.ranks
        for rank in range(n):
            expected: np.ndarray | None = None
            if kind in {"all_reduce", "reduce_scatter"} or (kind == "reduce" and rank == root):
                expected = REDUCTIONS[OPS[op]]([each.view(np.int32) for each in data]).astype(np.int32).view(np.uint8)
                if kind == "reduce_scatter":
                    expected = expected[rank * unit : (rank + 1) * unit]
            elif kind == "broadcast":
                expected = data[root]
            elif kind == "all_gather" or (kind == "gather" and rank == root):
                expected = np.concatenate(data)
            elif kind == "all_to_all":
                expected = np.concatenate([each[rank * unit : (rank + 1) * unit] for each in data])
            elif kind == "scatter":
                expected = data[root][rank * unit : (rank + 1) * unit]
            if expected is not None:
                own = self.operations[rank][-1]
                self._expected.append((rank, own.destination or own.source, expected))

    def message(self, sender: int, receiver: int, count: int, at: tuple[int, int]) -> None:
        """Adds a message anywhere in the lists of the two ranks; messages of a pair stay in order because they are
        inserted from the back."""
        source, destination = self._place(count), self._place(count)
        data = self._fill(sender, source, count)
        for rank, exchange, place in (
            (sender, CollectiveExchange("send", source, 0, count, peer=receiver), at[0]),
            (receiver, CollectiveExchange("recv", 0, destination, count, peer=sender), at[1]),
        ):
            own = self.operations[rank]
            first = next((i for i, each in enumerate(own) if each.kind == exchange.kind), len(own))
            own.insert(min(place, first), exchange)
        self._expected.append((receiver, destination, data))

    def run(self) -> None:
        self.nccl.group([calls(own, rank, self.ranks, SCRATCH, {}) for rank, own in enumerate(self.operations)])
        for rank, address, data in self._expected:
            np.testing.assert_array_equal(self.nccl.read(rank, address, data.size), data)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("in_place", [False, True], ids=["out_of_place", "in_place"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind: str, in_place: bool, ranks: int) -> None:
    for root in range(ranks):
        program = Program(ranks, root)
        program.add(kind, 7, root, "sum", in_place)
        program.run()


@given(data=st.data())
@settings(max_examples=80)
def test_batches(data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, 4), "ranks")
    rank = st.integers(0, ranks - 1)
    program = Program(ranks, data.draw(st.integers(0, 99), "seed"))
    for _ in range(data.draw(st.integers(0, 5), "collectives")):
        op = data.draw(st.sampled_from([name for name in OPS if name != "mean"]), "op")
        program.add(
            data.draw(st.sampled_from(KINDS)),
            data.draw(st.integers(1, 40)),
            data.draw(rank),
            op,
            data.draw(st.booleans()),
        )
    place = st.integers(0, 8)
    for _ in range(data.draw(st.integers(0, 6), "messages")):
        program.message(
            data.draw(rank), data.draw(rank), data.draw(st.integers(1, 40)), data.draw(st.tuples(place, place))
        )
    program.run()


def test_a_message_does_not_meet_a_part_of_another_operation() -> None:
    """Makes one rank send after the all_to_all and the other receive before it: NCCL pairs calls in order."""
    program = Program(2, 0)
    program.add("all_to_all", 8, 0, "", False)
    program.message(0, 1, 3, (1, 0))
    assert [each.kind for each in program.operations[0]] == ["all_to_all", "send"]
    assert [each.kind for each in program.operations[1]] == ["recv", "all_to_all"]
    program.run()


def test_empty_operations_make_no_calls() -> None:
    assert calls([], 0, 2, SCRATCH, {}) == []
    in_place = CollectiveExchange("gather", START, START, 8, root=0)
    assert calls([in_place], 0, 1, SCRATCH, {}) == []


def test_premultiplied_sums_use_the_operator_of_their_dtype_and_factor() -> None:
    one, two = np.float32(1).tobytes(), np.float32(2).tobytes()
    expected_operations = [("all_reduce", "float32", two), ("reduce", "float32", one), ("reduce_scatter", "int32", one)]
    operations = [
        CollectiveExchange(kind, START, START, 7, dtype, "premul_sum", root=1, factor=factor)
        for kind, dtype, factor in expected_operations
    ]
    operations.append(CollectiveExchange("all_reduce", START, START, 7, "float32", "sum"))
    assert operators(operations) == {("float32", one), ("float32", two), ("int32", one)}
    made = calls(operations, 0, 2, SCRATCH, {("float32", one): 5, ("float32", two): 6, ("int32", one): 7})
    assert made == [
        ("allReduce", (START, START, 7, DTYPES["float32"], 6)),
        ("reduce", (START, START, 7, DTYPES["float32"], 5, 1)),
        ("reduceScatter", (START, START, 7, DTYPES["int32"], 7)),
        ("allReduce", (START, START, 7, DTYPES["float32"], OPS["sum"])),
    ]


def test_numbers_are_those_of_nccl_h() -> None:
    assert list(DTYPES.values()) == list(range(12))  # ncclInt8 to ncclFloat8e5m2
    assert OPS == {"sum": 0, "prod": 1, "max": 2, "min": 3, "mean": 4}


@pytest.mark.parametrize(
    ("version", "capability", "narrow"),
    [
        (22803, (9, 0), True),
        (22803, (10, 0), True),
        (22400, (9, 0), True),
        (22403, (8, 9), False),
        (22304, (9, 0), False),
    ],
)
def test_reducible_dtypes_by_version_and_capability(version: int, capability: tuple[int, int], narrow: bool) -> None:
    allowed = reducible(version, capability)
    assert {"int8", "bfloat16", "float64"} <= set(allowed)
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        assert (dtype in allowed) is narrow
        check("all_gather", dtype, "", allowed)
        if narrow:
            check("reduce", dtype, "mean", allowed)
        else:
            with pytest.raises(Refusal, match=r"NCCL 2\.24") as refused:
                check("reduce", dtype, "mean", allowed)
            assert refused.value.details["requested"] == dtype and dtype not in refused.value.details["allowed"]


@pytest.mark.parametrize("dtype", ["int16", "uint16", "bool", "complex64", "complex128", ""])
def test_dtypes_without_nccl_arithmetic_are_moved(dtype: str) -> None:
    allowed = reducible(22803, (9, 0))
    for kind in ("all_reduce", "reduce", "reduce_scatter"):
        with pytest.raises(Refusal) as refused:
            check(kind, dtype, "sum", allowed)
        assert refused.value.reason == Reason.UNSUPPORTED and "float32" in refused.value.message
    for kind in set(KINDS) - {"all_reduce", "reduce", "reduce_scatter"} | {"send", "recv"}:
        check(kind, dtype, "", allowed)


def test_unknown_operations_are_refused() -> None:
    allowed = reducible(22803, (9, 0))
    with pytest.raises(Refusal, match="all_sum") as refused:
        check("all_sum", "float32", "sum", allowed)
    assert refused.value.reason == Reason.UNSUPPORTED
    with pytest.raises(Refusal, match="xor"):
        check("all_reduce", "float32", "xor", allowed)


def test_names_for_messages() -> None:
    assert describe([CollectiveExchange("reduce")]) == "reduce"
    assert (
        describe([CollectiveExchange("send"), CollectiveExchange("all_gather"), CollectiveExchange("send")])
        == "a batch of 3 (all_gather, send)"
    )
