"""Collectives between CPU device processes, through one shared memory segment for each group."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from hearth_proto.collectives import REDUCING
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.communicator import CollectiveExchange
from hearthd.device.cpu import libraries
from hearthd.device.cpu.collective import shared_segment
from hearthd.device.cpu.collective.shared_exchange import SharedExchange
from hearthd.device.cpu.libraries import DTYPES, KINDS, OPS, LibraryMaker
from hearthd.device.cpu.streams import CpuStream

TIMEOUT_S = 600.0
"""Timeout in seconds of a wait without progress. A last resort: if a rank is missing, the front's own limit ends the
operation long before."""

_BUILD_SLOTS = threading.BoundedSemaphore(2)
"""Limit of concurrent compiles for operations that no request waits for yet."""


class CpuCommunicator:
    """Communicator of one rank of a group."""

    def __init__(self, exchange: SharedExchange) -> None:
        self._exchange = exchange
        self._failure = ""

    def enqueue(self, operations: Sequence[CollectiveExchange], stream: CpuStream) -> None:
        """Checks the operations now and runs them on the stream's thread; `failure_reason` returns a failure there."""
        if self._failure:
            raise Refusal(
                Reason.COMMUNICATOR_FAILED,
                f"The communicator of rank {self._exchange.rank} has failed: {self._failure}",
                fix="Abort it on every rank, then make a new one.",
                details={"rank": self._exchange.rank, "ranks": self._exchange.ranks},
            )
        call = self._exchange.prepare(operations)

        def work() -> None:
            try:
                self._exchange.run(call, TIMEOUT_S)
            except (Refusal, OSError) as error:  # OSError: a library that must be compiled first cannot be written
                # Set before the event after this work: `failure_reason` returns it once that event is done. The first
                # reason is kept.
                self._failure = self._failure or (error.message if isinstance(error, Refusal) else str(error))

        stream.submit(work)

    def failure_reason(self) -> str:
        return self._failure

    can_stop = False

    def stop(self) -> None:
        """Aborts the communicator: `abort` frees nothing that is still in use."""
        self.abort()

    def abort(self) -> None:
        """Closes the segment. Blocks until a running operation of this rank has failed."""
        self._failure = self._failure or f"The communicator of rank {self._exchange.rank} was aborted."
        self._exchange.close()  # waits for a running operation of this rank, which fails now


class CpuCommunicators:
    """Groups by the descriptor of their segment. `maker` builds the backend's libraries."""

    def __init__(self, maker: LibraryMaker) -> None:
        self._maker = maker
        self._requested: set[str] = set()
        """Names of the libraries whose compile has been requested."""

    def check(self, kind: str, dtype: str, op: str) -> None:
        """Starts, on a separate thread, to compile the libraries that an accepted operation needs."""
        if kind not in KINDS:
            raise _unsupported(f"There is no collective {kind!r}", "kind", kind, KINDS)
        if kind not in REDUCING:  # moves bytes, regardless of the dtype
            self._start_build("exchange")
            return
        if dtype not in DTYPES:
            raise _unsupported(f"{kind} of {dtype or 'an unnamed dtype'} cannot be computed", "dtype", dtype, DTYPES)
        if op not in OPS:
            raise _unsupported(f"{kind} has no reduction {op!r}", "op", op, OPS)
        self._start_build("exchange")
        self._start_build(f"reduce-{dtype}")

    def _start_build(self, name: str) -> None:
        """Starts to compile a library that an operation will need.

        The compile runs concurrently with the work before the operation.
        """
        if name not in self._requested:
            self._requested.add(name)
            threading.Thread(target=self._build, args=(name,), name="exchange build", daemon=True).start()

    def _build(self, name: str) -> None:
        # The first use encounters the same error, and reports it.
        with _BUILD_SLOTS, contextlib.suppress(Refusal, OSError):
            libraries.load(name, self._maker)

    def unique_id(self, ranks: int) -> bytes:
        return shared_segment.create(ranks, self._maker)

    def forget(self, unique_id: bytes) -> None:
        shared_segment.release(unique_id)

    def join(self, unique_id: bytes, rank: int, ranks: int) -> CpuCommunicator:
        return CpuCommunicator(SharedExchange.attach(unique_id, rank, ranks, self._maker))


def _unsupported(problem: str, field: str, requested: str, allowed: Sequence[str]) -> Refusal:
    return Refusal(
        Reason.UNSUPPORTED,
        f"{problem}; the CPU backend has {', '.join(allowed)}.",
        fix="Use one of these.",
        details={"field": field, "requested": requested, "allowed": ", ".join(allowed)},
    )
