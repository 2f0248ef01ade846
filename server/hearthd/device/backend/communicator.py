"""Communicators: the exchange of data between the devices of ranks, which CUDA and CPU implement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hearthd.device.backend.resources import Stream


@dataclass(frozen=True, slots=True)
class CollectiveExchange:
    """A collective operation as a backend executes it.

    Counts have NCCL's meaning: elements that one rank gives to another.
    """

    kind: str
    """`all_reduce`, `reduce`, `broadcast`, `all_gather`, `reduce_scatter`, `all_to_all`, `gather`, `scatter`, `send`,
    `recv`, `barrier`"""
    source: int = 0
    """Device addresses; 0 if this rank has no source or no destination."""
    destination: int = 0
    count: int = 0
    """Number of elements, at least 1 except for `barrier`."""
    dtype: str = "uint8"
    """Type of the elements. For operations that do not reduce: `uint8`, with `count` in bytes."""
    op: str = ""
    """`sum`, `mean`, `min`, `max`, `prod`, `premul_sum`; empty for an operation that does not reduce."""
    root: int = 0
    peer: int = 0
    factor: bytes = b""
    """One element of `dtype`, by which `premul_sum` multiplies this rank's elements; empty for other reductions."""


class RankCommunicator(Protocol):
    """Communicator of one rank of a group."""

    def enqueue(self, operations: Sequence[CollectiveExchange], stream: Stream) -> None:
        """Enqueues all operations as one group (ncclGroupStart, ncclGroupEnd).

        Device-handle thread; never waits for a peer. Raises Refusal(COMMUNICATOR_FAILED).
        """
        ...

    def failure_reason(self) -> str:
        """Returns the reason why the communicator is no longer usable, or an empty string.

        Device-handle thread; never waits.
        """
        ...

    @property
    def can_stop(self) -> bool:
        """True if the communicator can be stopped before it is aborted."""
        ...

    def stop(self) -> None:
        """Ends running operations, even if a peer is gone, and frees nothing.

        Any thread; blocks until the work that precedes the operations on the device has completed.
        """
        ...

    def abort(self) -> None:
        """Ends running operations, even if a peer is gone, and frees the communicator. Any thread; may block."""
        ...


class CommunicatorFactory(Protocol):
    """Creates the communicators of new groups. One factory for each device process."""

    def check(self, kind: str, dtype: str, op: str) -> None:
        """Raises Refusal(UNSUPPORTED) if the backend cannot do the operation. Device-handle thread."""
        ...

    def unique_id(self, ranks: int) -> bytes:
        """Returns the id with which the ranks of one new group find each other."""
        ...

    def forget(self, unique_id: bytes) -> None:
        """Drops an id that no further rank will use to join. Device-handle thread."""
        ...

    def join(self, unique_id: bytes, rank: int, ranks: int) -> RankCommunicator:
        """Returns the communicator of rank `rank` (from 0) in a new group of `ranks` ranks.

        Called on a helper thread, because it may block until every rank of the group has joined.

        Raises Refusal, usually Refusal(COMMUNICATOR_FAILED).
        """
        ...
