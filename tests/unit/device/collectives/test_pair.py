"""Two device processes that exchange data; the test is the front of both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal, from_status, to_text
from hearth_proto.v1 import commands_pb2 as c
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.link import DeviceLink

LOST = Refusal(Reason.COLLECTIVE_TIMEOUT, "rank 1 did not finish")


class Rank(DeviceLink):
    """A device process whose buffer 1 has 16 floats of rank + 1, and whose buffer 2 has 32 floats."""

    def __init__(self, rank: int) -> None:
        super().__init__(DeviceSpec(rank, "cpu", rank, memory_limit=1 << 24))
        self.rank = rank
        pattern = np.float32(rank + 1).tobytes()
        for buffer, size in ((1, 64), (2, 128)):
            self.batch(
                c.Command(allocate=c.Allocate(buffer=buffer, size=size)),
                c.Command(fill=c.Fill(buffer=buffer, size=size, pattern=pattern)),
            )

    def hear(self, op: str) -> dict[str, Any]:
        while True:
            message: dict[str, Any] = json.loads(self.expect(Kind.COLLECTIVE).payload)
            if message["op"] == op:
                return message

    def tell(self, op: str, **body: Any) -> None:
        self.send(Kind.COLLECTIVE, json.dumps({"op": op, **body}).encode())

    def present(self, sequence: int, kind: int, source: int, destination: int, timeout: float = 20) -> dict[str, Any]:
        operation = c.CollectiveOperation(
            kind=kind, source=source, destination=destination, count=16, dtype="float32", op=c.REDUCE_OP_SUM
        )
        command = c.Collective(devices=(0, 1), sequence=sequence, operations=[operation], timeout_ns=int(timeout * 1e9))
        self.batch(c.Command(collective=command))
        return self.hear("present")

    def go(self, presented: dict[str, Any], index: int, comm: str) -> None:
        address = {name: presented[name] for name in ("channel", "group", "devices", "sequence")}
        self.tell("go", **address, comm=comm, rank=self.rank, ranks=2, index=index)

    def floats(self, buffer: int, size: int) -> list[float]:
        result = self.call(read=c.Read(buffer=buffer, size=size))
        assert not result.HasField("error"), result.error.message
        return [float(value) for value in np.frombuffer(result.read.data, np.float32)]

    def reason(self, **command: Any) -> str:
        result = self.call(**command)
        return str(from_status(result.error).reason) if result.HasField("error") else ""


@pytest.fixture(scope="module")
def ranks() -> Iterator[list[Rank]]:
    links = [Rank(rank) for rank in range(2)]
    yield links
    for link in links:
        link.close()


def join(ranks: list[Rank], comm: str) -> None:
    ranks[0].tell("create_id", comm=comm, ranks=2)
    unique_id = ranks[0].hear("id")["unique_id"]
    for link in ranks:
        link.tell("join", comm=comm, unique_id=unique_id, rank=link.rank, ranks=2)
    for link in ranks:
        assert link.hear("joined")["comm"] == comm


def test_ranks_exchange(ranks: list[Rank]) -> None:
    join(ranks, "a-1")
    presented = [link.present(1, c.COLLECTIVE_KIND_ALL_GATHER, 1, 2) for link in ranks]
    for link, message in zip(ranks, presented, strict=True):
        link.go(message, 1, "a-1")
    assert [link.floats(2, 128) for link in ranks] == [[1.0] * 16 + [2.0] * 16] * 2


def test_peer_that_never_takes_part(ranks: list[Rank]) -> None:
    """Checks a peer that this rank considers released; its process runs and does not take part."""
    join(ranks, "a-2")
    first, second = ranks
    before = first.floats(2, 128)
    presented = [link.present(2, c.COLLECTIVE_KIND_ALL_REDUCE, 1, 1, timeout=0.4) for link in ranks]
    first.go(presented[0], 1, "a-2")
    failed = first.hear("failed")
    assert failed["timed_out"] and (failed["comm"], failed["sequence"]) == ("a-2", 2)
    status = to_text(LOST)
    for link in ranks:
        link.tell("abort", comm="a-2", reason="rank 1 did not finish", status=status)
    fail = {key: presented[1][key] for key in ("channel", "group", "devices", "sequence")}
    second.tell("fail", **fail, status=status)
    assert [link.reason(sync=c.Sync()) for link in ranks] == [Reason.COLLECTIVE_TIMEOUT] * 2
    assert first.floats(2, 128) == before  # everything else is unchanged
    for link in ranks:
        link.batch(c.Command(fill=c.Fill(buffer=1, size=64, pattern=np.float32(3).tobytes())))
    join(ranks, "a-3")
    presented = [link.present(3, c.COLLECTIVE_KIND_ALL_REDUCE, 1, 1) for link in ranks]
    for link, message in zip(ranks, presented, strict=True):
        link.go(message, 1, "a-3")
    assert [link.floats(1, 64) for link in ranks] == [[6.0] * 16] * 2


def test_peer_that_aborts_during_the_exchange(ranks: list[Rank]) -> None:
    """Checks that the result is not returned, although the survivor's device may have completed the operation."""
    join(ranks, "a-4")
    presented = [link.present(4, c.COLLECTIVE_KIND_ALL_REDUCE, 1, 1, timeout=3) for link in ranks]
    ranks[0].go(presented[0], 1, "a-4")
    ranks[1].tell("abort", comm="a-4", reason="", status="")
    assert ranks[0].hear("failed")["comm"] == "a-4"
    status = to_text(LOST)
    ranks[0].tell("abort", comm="a-4", reason="", status=status)
    assert ranks[0].reason(read=c.Read(buffer=1, size=4)) == Reason.COLLECTIVE_TIMEOUT
    ranks[1].go(presented[1], 1, "a-4")  # too late
    assert ranks[1].reason(sync=c.Sync()) == Reason.COMMUNICATOR_FAILED
