"""Communicators: the exchange of data between the devices of ranks, which CUDA and CPU implement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hearthd.device.backend.resources import Stream


@dataclass(frozen=True, slots=True)
class CollectiveExchange:
    """An operation of a collective for a backend. Counts are NCCL's: the elements that one rank gives to another."""

    kind: str
    """`all_reduce`, `reduce`, `broadcast`, `all_gather`, `reduce_scatter`, `all_to_all`, `gather`, `scatter`, `send`,
    `recv`, `barrier`"""
    source: int = 0
    """Addresses; 0 where this rank has none of that kind."""
    destination: int = 0
    count: int = 0
    """Elements, at least one but for `barrier`."""
    dtype: str = "uint8"
    """Type of the elements. For operations that do not reduce: `uint8`, with `count` in bytes."""
    op: str = ""
    """`sum`, `mean`, `min`, `max`, `prod`; empty where nothing is reduced."""
    root: int = 0
    peer: int = 0


class RankCommunicator(Protocol):
    """Communicator of one rank of a group."""

    def enqueue(self, operations: Sequence[CollectiveExchange], stream: Stream) -> None:
        """Enqueues all operations as one (ncclGroupStart, ncclGroupEnd). Device-handle thread; never waits for a peer.
        Raises Refusal(COMMUNICATOR_FAILED)."""
        ...

    def failed(self) -> str:
        """Returns the reason why the communicator is no longer usable, or an empty string. Device-handle thread; never
        waits."""
        ...

    @property
    def stops(self) -> bool:
        """True if it can be stopped before it is aborted."""
        ...

    def stop(self) -> None:
        """Ends operations under way, also when a peer is gone, and frees nothing. Any thread; takes as long as the work
        before it on the device."""
        ...

    def abort(self) -> None:
        """Ends operations under way, also when a peer is gone, and frees the communicator. Any thread; may block."""
        ...


class CommunicatorFactory(Protocol):
    def check(self, kind: str, dtype: str, op: str) -> None:
        """Raises Refusal(UNSUPPORTED) for what the backend cannot do. Device-handle thread."""
        ...

    def unique_id(self, ranks: int) -> bytes:
        """Returns the id by which the ranks of one new group find each other."""
        ...

    def forget(self, unique_id: bytes) -> None:
        """Drops an id with which no further rank will join. Device-handle thread."""
        ...

    def join(self, unique_id: bytes, rank: int, ranks: int) -> RankCommunicator: ...
