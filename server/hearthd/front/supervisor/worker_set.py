"""The workers of one device: those that serve sessions, one that is vacant, those that end."""

from __future__ import annotations

from collections.abc import Iterator

from hearthd.front.supervisor.isolation import EVERYBODY, WorkerKey
from hearthd.front.supervisor.worker import Worker


class WorkerSet:
    """Each worker is in it once, from its making until its process is gone for good."""

    def __init__(self) -> None:
        self.serving: dict[WorkerKey, Worker] = {}
        self.vacant: Worker | None = None
        self.ending: set[Worker] = set()

    def __iter__(self) -> Iterator[Worker]:
        """All of them."""
        return iter([*self.serving.values(), *([self.vacant] if self.vacant is not None else []), *self.ending])

    def __len__(self) -> int:
        return len(self.serving) + (self.vacant is not None) + len(self.ending)

    @property
    def running(self) -> list[Worker]:
        """The workers whose process can be asked."""
        return [worker for worker in self if worker.link is not None and not worker.ending]

    @property
    def idle(self) -> Worker | None:
        """Returns a worker that could make room for another."""
        for key, worker in self.serving.items():
            if worker.holds_nothing and key != EVERYBODY:
                return worker
        return None

    def occupy(self, key: WorkerKey, quota: int) -> Worker | None:
        """The vacant worker, which serves `key` from now on; None: there is none."""
        worker, self.vacant = self.vacant, None
        if worker is not None:
            worker.adopt(key, quota)
            self.serving[key] = worker
        return worker

    def replace(self, worker: Worker) -> bool:
        """Puts the vacant worker in the place of one that lost its process; False: there is none."""
        if worker.key is None or self.vacant is None:
            return False
        spare, self.vacant = self.vacant, None
        spare.adopt(worker.key, worker.quota, worker.losses)
        self.serving[worker.key] = spare
        self.ending.add(worker)
        return True

    def settle(self) -> None:
        """Moves workers that have begun to end out of service."""
        for worker in [each for each in self.serving.values() if each.ending]:
            assert worker.key is not None
            self.ending.add(self.serving.pop(worker.key))
        if self.vacant is not None and self.vacant.ending:
            self.ending.add(self.vacant)
            self.vacant = None

    def gone(self, worker: Worker) -> None:
        """Removes a worker whose process is gone, and that gets no other."""
        self.ending.discard(worker)
        if worker is self.vacant:
            self.vacant = None
        if worker.key is not None and self.serving.get(worker.key) is worker:
            del self.serving[worker.key]
