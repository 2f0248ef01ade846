"""Commands that cannot run yet, and what must stay behind them.

A command waits for what it needs (a compile, bytes on their way, a peer, room) without holding up others: only those
that share its logical stream or a buffer with it, in a way that matters, queue behind it. Each waiting command counts
the waiting commands that it conflicts with; when one has run, those behind it are let go. Submitting and finishing cost
what the command's own keys cost, however many wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar


class Deferrable(Protocol):
    """What the queue needs of a command. Keys are logical streams, buffers, modules."""

    @property
    def writes(self) -> Sequence[Hashable]: ...
    @property
    def reads(self) -> Sequence[Hashable]: ...
    @property
    def barrier(self) -> bool:
        """Conflicts with everything."""
        ...

    @property
    def stands(self) -> bool:
        """Whether it waits only for others of its kind and for an answer that has been asked for, or will be."""
        ...

    def step(self) -> bool:
        """Tries to run; False: still waiting. Called again whenever something may have changed."""
        ...

    def announce(self, ahead: Sequence[Any]) -> None:
        """Called at most once, when all that it stands behind, `ahead`, announce themselves: it may ask ahead of its
        turn for what it will wait for."""
        ...


C = TypeVar("C", bound=Deferrable)


class _Waiting(Generic[C]):
    """A waiting command, what it waits behind, and who waits behind it."""

    __slots__ = ("ahead", "behind", "command", "done")

    def __init__(self, command: C) -> None:
        self.command = command
        self.ahead = 0
        self.behind: list[_Waiting[C]] = []
        self.done = False


class _Key(Generic[C]):
    """The waiting commands that hold a key: the last writer, and the readers since."""

    __slots__ = ("readers", "writer")

    def __init__(self) -> None:
        self.writer: _Waiting[C] | None = None
        self.readers: dict[_Waiting[C], None] = {}


class Deferred(Generic[C]):
    """The waiting commands of one session."""

    def __init__(self) -> None:
        self._all: dict[_Waiting[C], None] = {}  # in the order of submission
        self._keys: dict[Hashable, _Key[C]] = {}
        self._barrier: _Waiting[C] | None = None
        self._ready: deque[_Waiting[C]] = deque()
        self._pumping = False
        self._again = False

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[C]:
        return iter([waiting.command for waiting in self._all])

    def holds(self, key: Hashable) -> bool:
        """Whether a waiting command, other than a barrier, holds the key."""
        return key in self._keys

    def submit(self, command: C) -> bool:
        """Runs the command now if nothing before it and nothing of its own stands in the way; True if it ran."""
        if not self._all:
            if command.step():
                return True
            waiting = _Waiting(command)
        else:
            waiting = _Waiting(command)
            ahead = self._ahead(command)
            for other in ahead:
                other.behind.append(waiting)
            waiting.ahead = len(ahead)
            if not ahead and command.step():
                return True
            if ahead and all(other.command.stands for other in ahead):
                command.announce([other.command for other in ahead])
        self._hold(waiting)
        if not waiting.ahead:
            self._ready.append(waiting)
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
                self._pass(finished)
                if not self._again:
                    return finished
        finally:
            self._pumping = False

    def clear(self) -> list[C]:
        """Gives up all that wait; oldest first."""
        commands = list(self)
        self._all.clear()
        self._keys.clear()
        self._ready.clear()
        self._barrier = None
        return commands

    def _pass(self, finished: list[C]) -> None:
        """Tries every ready command once, and those that become ready on the way."""
        ready, self._ready = self._ready, deque()
        while ready:
            waiting = ready.popleft()
            if not waiting.command.step():
                self._ready.append(waiting)
                continue
            self._release(waiting)
            finished.append(waiting.command)
            for follower in waiting.behind:
                follower.ahead -= 1
                if not follower.ahead:
                    ready.append(follower)

    def _ahead(self, command: C) -> set[_Waiting[C]]:
        """The waiting commands that have to run first."""
        if command.barrier:
            return set(self._all)
        ahead: set[_Waiting[C]] = set() if self._barrier is None else {self._barrier}
        for key in command.writes:
            held = self._keys.get(key)
            if held is not None:
                ahead.update(held.readers)
                if held.writer is not None:
                    ahead.add(held.writer)
        for key in command.reads:
            held = self._keys.get(key)
            if held is not None and held.writer is not None:
                ahead.add(held.writer)
        return {waiting for waiting in ahead if not waiting.done}

    def _hold(self, waiting: _Waiting[C]) -> None:
        self._all[waiting] = None
        command = waiting.command
        if command.barrier:
            self._barrier = waiting
            return
        for key in command.reads:
            self._keys.setdefault(key, _Key()).readers[waiting] = None
        for key in command.writes:
            held = self._keys.setdefault(key, _Key())
            held.writer = waiting
            held.readers.clear()  # they are ahead of the writer, and so of all that follow it

    def _release(self, waiting: _Waiting[C]) -> None:
        waiting.done = True
        self._all.pop(waiting, None)
        if self._barrier is waiting:
            self._barrier = None
        for key in (*waiting.command.reads, *waiting.command.writes):
            held = self._keys.get(key)
            if held is None:
                continue
            if held.writer is waiting:
                held.writer = None
            held.readers.pop(waiting, None)
            if held.writer is None and not held.readers:
                del self._keys[key]
