"""Commands that cannot run yet, and what must stay behind them.

A command waits for what it needs (a compile, bytes on their way, a peer, room) without holding up others: only those
that share its logical stream or a buffer with it, in a way that matters, queue behind it. It is a scoreboard: each
waiting command holds its keys; a later command goes ahead only if it conflicts with none of the keys held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar


class Deferrable(Protocol):
    """What the queue needs of a command. Keys are logical streams and buffers."""

    @property
    def writes(self) -> Iterable[Hashable]: ...
    @property
    def reads(self) -> Iterable[Hashable]: ...
    @property
    def barrier(self) -> bool:
        """Conflicts with everything."""
        ...

    def step(self) -> bool:
        """Tries to run; False: still waiting. Called again whenever something may have changed."""
        ...


C = TypeVar("C", bound=Deferrable)


class Deferred(Generic[C]):
    """The waiting commands of one session, in the order of submission."""

    def __init__(self) -> None:
        self._waiting: list[C] = []
        self._writes: Counter[Hashable] = Counter()
        self._reads: Counter[Hashable] = Counter()
        self._barriers = 0
        self._pumping = False
        self._again = False

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._waiting))

    def submit(self, command: C) -> bool:
        """Runs the command now if nothing before it and nothing of its own stands in the way; True if it ran."""
        if not self._conflicts(command, self._writes, self._reads, self._barriers, bool(self._waiting)) and (
            command.step()
        ):
            return True
        self._waiting.append(command)
        self._hold(command)
        return False

    def pump(self) -> list[C]:
        """Runs what can run by now; the commands that finished. A call from within is folded into the running one."""
        if self._pumping:
            self._again = True
            return []
        self._pumping = True
        finished: list[C] = []
        try:
            while True:
                self._again = False
                finished += self._pass()
                if not self._again:
                    return finished
        finally:
            self._pumping = False

    def clear(self) -> list[C]:
        """Gives up all that wait."""
        waiting, self._waiting = self._waiting, []
        self._writes.clear()
        self._reads.clear()
        self._barriers = 0
        return waiting

    def _pass(self) -> list[C]:
        finished: list[C] = []
        held_writes: set[Hashable] = set()
        held_reads: set[Hashable] = set()
        barriers = 0
        any_waiting = False
        for command in list(self._waiting):
            blocked = self._conflicts(command, held_writes, held_reads, barriers, any_waiting)
            if not blocked and command.step():
                self._waiting.remove(command)
                self._release(command)
                finished.append(command)
                continue
            any_waiting = True
            held_writes.update(command.writes)
            held_reads.update(command.reads)
            barriers += command.barrier
        return finished

    @staticmethod
    def _conflicts(
        command: C,
        writes: Counter[Hashable] | set[Hashable],
        reads: Counter[Hashable] | set[Hashable],
        barriers: int,
        any_waiting: bool,
    ) -> bool:
        if not any_waiting:
            return False
        if barriers or command.barrier:
            return True
        return any(key in writes or key in reads for key in command.writes) or any(
            key in writes for key in command.reads
        )

    def _hold(self, command: C) -> None:
        self._writes.update(command.writes)
        self._reads.update(command.reads)
        self._barriers += command.barrier

    def _release(self, command: C) -> None:
        for counter, keys in ((self._writes, command.writes), (self._reads, command.reads)):
            for key in keys:
                counter[key] -= 1
                if not counter[key]:
                    del counter[key]
        self._barriers -= command.barrier
