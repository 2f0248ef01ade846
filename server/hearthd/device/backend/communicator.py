"""Communicators: how ranks exchange data between their devices, which CUDA and CPU implement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hearthd.device.backend.resources import Stream


@dataclass(frozen=True, slots=True)
class CollectiveExchange:
    """One operation of a collective, as a backend gets it. Counts are NCCL's: what one rank gives to another."""

    kind: str
    """`all_reduce`, `reduce`, `broadcast`, `all_gather`, `reduce_scatter`, `all_to_all`, `gather`, `scatter`, `send`,
    `recv`, `barrier`"""
    source: int = 0
    """Addresses; 0 where this rank has none of that kind."""
    destination: int = 0
    count: int = 0
    """Elements, at least one but for `barrier`."""
    dtype: str = "uint8"
    """Of what does not reduce: `uint8`, and `count` is in bytes."""
    op: str = ""
    """`sum`, `mean`, `min`, `max`, `prod`; empty where nothing is reduced."""
    root: int = 0
    peer: int = 0


class RankCommunicator(Protocol):
    """One rank of a group."""

    def enqueue(self, operations: Sequence[CollectiveExchange], stream: Stream) -> None:
        """All of them as one (ncclGroupStart, ncclGroupEnd). Device-handle thread; never waits for a peer. Raises
        Refusal(COMMUNICATOR_FAILED)."""
        ...

    def failed(self) -> str:
        """Why the communicator is no longer usable, or an empty string. Device-handle thread; never waits."""
        ...

    @property
    def stops(self) -> bool:
        """Whether it can be stopped before it is aborted."""
        ...

    def stop(self) -> None:
        """Ends what is under way, also when a peer is gone, and frees nothing. Any thread; takes as long as what stands
        before it on the device."""
        ...

    def abort(self) -> None:
        """Ends what is under way, also when a peer is gone, and frees what it has. Any thread; may block."""
        ...


class CommunicatorFactory(Protocol):
    def check(self, kind: str, dtype: str, op: str) -> None:
        """Raises Refusal(UNSUPPORTED) for what the backend cannot do. Device-handle thread."""
        ...

    def unique_id(self, ranks: int) -> bytes:
        """What the ranks of one new group find each other by."""
        ...

    def forget(self, unique_id: bytes) -> None:
        """No rank will join by it any more. Device-handle thread."""
        ...

    def join(self, unique_id: bytes, rank: int, ranks: int) -> RankCommunicator: ...
