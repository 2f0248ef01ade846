"""Collectives between CPU device processes, through one shared memory segment a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu.exchange_kinds import DTYPES, KINDS, OPS, REDUCING
from hearthd.device.cpu.streams import CpuStream
from hearthd.device.server import Exchange

TIMEOUT_S = 600.0
"""The last resort, for a wait in which nothing moves; the front's own limit ends an operation whose rank is missing
long before."""

if TYPE_CHECKING:
    from hearthd.device.cpu.shared_exchange import SharedExchange
    from hearthd.device.cpu.toolchain import Toolchain


class CpuCommunicator:
    """One rank of a group."""

    def __init__(self, end: SharedExchange) -> None:
        self._end = end
        self._failure = ""

    def enqueue(self, operations: Sequence[Exchange], stream: CpuStream) -> None:
        if self._failure:
            raise Refusal(
                Reason.COMMUNICATOR_FAILED,
                f"The communicator of rank {self._end.rank} has failed: {self._failure}",
                fix="Abort it on every rank, then make a new one.",
                details={"rank": self._end.rank, "ranks": self._end.ranks},
            )
        call = self._end.prepare(operations)

        def work() -> None:
            try:
                self._end.run(call, TIMEOUT_S)
            except Refusal as refusal:
                # Ahead of the event behind it: who sees that event and asks `failed` then knows. The first one counts.
                self._failure = self._failure or refusal.message

        stream.submit(work)

    def failed(self) -> str:
        return self._failure

    def abort(self) -> None:
        self._failure = self._failure or f"The communicator of rank {self._end.rank} was aborted."
        self._end.abort()
        self._end.close()  # waits for an operation of this rank that is under way, which fails now


class CpuCommunicators:
    """Groups by the descriptor of their segment. `toolchain` says which build of the runtime this process uses."""

    def __init__(self, toolchain: Callable[[], Toolchain]) -> None:
        self._toolchain = toolchain

    def check(self, kind: str, dtype: str, op: str) -> None:
        if kind not in KINDS:
            raise _unsupported(f"There is no collective {kind!r}", "kind", kind, KINDS)
        if kind not in REDUCING:
            return  # it moves bytes, of whatever dtype
        if dtype not in DTYPES:
            raise _unsupported(f"{kind} of {dtype or 'an unnamed dtype'} cannot be computed", "dtype", dtype, DTYPES)
        if op not in OPS:
            raise _unsupported(f"{kind} has no reduction {op!r}", "op", op, OPS)

    def unique_id(self, ranks: int) -> bytes:
        from hearthd.device.cpu.shared_exchange import SharedExchange  # builds the runtime: only where it is needed

        return SharedExchange.create(ranks, self._toolchain())

    def forget(self, unique_id: bytes) -> None:
        from hearthd.device.cpu.shared_exchange import SharedExchange

        SharedExchange.release(unique_id)

    def join(self, unique_id: bytes, rank: int, ranks: int) -> CpuCommunicator:
        from hearthd.device.cpu.shared_exchange import SharedExchange

        return CpuCommunicator(SharedExchange.attach(unique_id, rank, ranks, self._toolchain()))


def _unsupported(what: str, field: str, requested: str, allowed: Sequence[str]) -> Refusal:
    return Refusal(
        Reason.UNSUPPORTED,
        f"{what}; the CPU backend has {', '.join(allowed)}.",
        fix="Use one of these.",
        details={"field": field, "requested": requested, "allowed": ", ".join(allowed)},
    )
