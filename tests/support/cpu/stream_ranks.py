"""Ranks of the CPU backend's communicators in this process, each with a stream."""

from __future__ import annotations

import threading

from hearthd.device.backend.communicator import CollectiveExchange
from hearthd.device.cpu.collective.communicators import CpuCommunicators
from hearthd.device.cpu.streams import CpuEvent, CpuStream

WAIT_S = 30.0


class Rank:
    """A communicator with a stream."""

    def __init__(self, communicators: CpuCommunicators, unique_id: bytes, rank: int, ranks: int) -> None:
        self.communicator = communicators.join(unique_id, rank, ranks)
        self.progress = threading.Event()
        self.stream = CpuStream(f"rank-{rank}", self.progress.set)

    def enqueue(self, *operations: CollectiveExchange) -> CpuEvent:
        self.communicator.enqueue(operations, self.stream)
        event = CpuEvent()
        self.stream.record(event)
        return event

    def reached(self, event: CpuEvent) -> None:
        while not event.done:
            assert self.progress.wait(WAIT_S), "the stream hangs"
            self.progress.clear()
        assert self.stream.failure is None

    def close(self) -> None:
        self.communicator.abort()
        self.stream.close()


def pair_of(communicators: CpuCommunicators) -> tuple[Rank, Rank]:
    unique_id = communicators.unique_id(2)
    ranks = Rank(communicators, unique_id, 0, 2), Rank(communicators, unique_id, 1, 2)
    communicators.forget(unique_id)
    return ranks
