"""The workers of one device: those that serve sessions, a vacant one, and those that are ending."""

from __future__ import annotations

from collections.abc import Iterator

from hearthd.front.supervisor.isolation import ALL_SESSIONS, FENCED, WorkerKey
from hearthd.front.supervisor.worker import Worker


class WorkerSet:
    """The workers of one device.

    Each worker is in the set once, from its creation until its process has ended for good.
    """

    def __init__(self) -> None:
        self.serving: dict[WorkerKey, Worker] = {}
        self.vacant: Worker | None = None
        self.ending: set[Worker] = set()

    def __iter__(self) -> Iterator[Worker]:
        """Iterates over all workers."""
        return iter([*self.serving.values(), *([self.vacant] if self.vacant is not None else []), *self.ending])

    def __len__(self) -> int:
        return len(self.serving) + (self.vacant is not None) + len(self.ending)

    @property
    def running(self) -> list[Worker]:
        """The workers whose process can answer requests."""
        return [worker for worker in self if worker.link is not None and not worker.ending]

    @property
    def idle(self) -> Worker | None:
        """A worker that could be ended to make room for another. None: there is none."""
        for key, worker in self.serving.items():
            if worker.is_idle and key != ALL_SESSIONS:
                return worker
        return None

    def occupy(self, key: WorkerKey, quota: int) -> Worker | None:
        """Assigns the vacant worker to `key` and returns it. None: there is no vacant worker."""
        worker, self.vacant = self.vacant, None
        if worker is not None:
            worker.adopt(key, quota)
            self.serving[key] = worker
        return worker

    def replace(self, worker: Worker) -> bool:
        """Replaces a worker that lost its process by the vacant worker.

        Returns False if there is none, or it was fenced with its device.
        """
        if worker.key is None or self.vacant is None or self.vacant.state == FENCED:
            return False
        spare, self.vacant = self.vacant, None
        spare.adopt(worker.key, worker.quota, worker.losses)
        self.serving[worker.key] = spare
        self.ending.add(worker)
        return True

    def move_ending(self) -> None:
        """Moves workers that have begun to end from the serving workers to the ending ones."""
        for worker in [worker for worker in self.serving.values() if worker.ending]:
            assert worker.key is not None
            self.ending.add(self.serving.pop(worker.key))
        if self.vacant is not None and self.vacant.ending:
            self.ending.add(self.vacant)
            self.vacant = None

    def remove(self, worker: Worker) -> None:
        """Removes a worker whose process has ended and that starts no other process."""
        self.ending.discard(worker)
        if worker is self.vacant:
            self.vacant = None
        if worker.key is not None and self.serving.get(worker.key) is worker:
            del self.serving[worker.key]
