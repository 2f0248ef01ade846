"""Collectives between CPU device processes, through one shared memory segment a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu.streams import CpuStream
from hearthd.device.server import Exchange

TIMEOUT_S = 600.0
"""The last resort; the front's own limit ends an operation whose rank is missing long before."""

if TYPE_CHECKING:
    from hearthd.device.cpu.shared_reduce import SharedReduce
    from hearthd.device.cpu.toolchain import Toolchain

OPS = ("sum", "mean", "min", "max", "prod")


class CpuCommunicator:
    """One rank of a group."""

    def __init__(self, reduce: SharedReduce) -> None:
        self._reduce = reduce
        self._failure = ""

    def enqueue(self, operations: Sequence[Exchange], stream: CpuStream) -> None:
        def work() -> None:
            try:
                for each in operations:
                    self._reduce.all_reduce(each.source, each.destination, each.count, each.dtype, each.op, TIMEOUT_S)
            except Refusal as refusal:
                self._failure = refusal.message

        stream.submit(work)

    def failed(self) -> str:
        return self._failure

    def abort(self) -> None:
        self._reduce.abort()
        self._reduce.close()  # waits for an operation of this rank that is under way, which fails now


class CpuCommunicators:
    """Groups by the descriptor of their segment. `toolchain` says which build of the runtime this process uses."""

    def __init__(self, toolchain: Callable[[], Toolchain]) -> None:
        self._toolchain = toolchain

    def check(self, kind: str, dtype: str, op: str) -> None:
        if op not in OPS:
            raise Refusal(Reason.UNSUPPORTED, f"all_reduce with {op}", fix=f"use one of {', '.join(OPS)}")

    def unique_id(self, ranks: int) -> bytes:
        from hearthd.device.cpu.shared_reduce import SharedReduce  # builds the runtime: only where it is needed

        return SharedReduce.create(ranks, self._toolchain())

    def forget(self, unique_id: bytes) -> None:
        from hearthd.device.cpu.shared_reduce import SharedReduce

        SharedReduce.release(unique_id)

    def join(self, unique_id: bytes, rank: int, ranks: int) -> CpuCommunicator:
        from hearthd.device.cpu.shared_reduce import SharedReduce

        return CpuCommunicator(SharedReduce.attach(unique_id, rank, ranks, self._toolchain()))
