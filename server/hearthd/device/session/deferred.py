"""Queue of deferred commands: commands that cannot run yet, and commands that must run after them.

A command waits for its inputs (a compile, bytes that are being transferred, a peer, room) without delaying unrelated
commands: only commands that use the same logical stream or buffer in a conflicting way wait for it. Each waiting
command counts the waiting commands that it conflicts with; when one of these has run, its followers are released. The
cost of submitting and finishing a command depends on the number of its keys, not on the number of waiting commands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Protocol

from hearth_proto.reasons import Refusal
from hearthd.device.session.cancellations import Cancellation


class SubmittedCommand(Protocol):
    """A command that has been submitted; see `hearthd.device.operation.Operation`.

    Keys are logical streams, buffers and modules.
    """

    @property
    def writes(self) -> Sequence[Hashable]:
        """Keys that the command uses exclusively: it waits for all earlier commands that use one of them."""
        ...

    @property
    def reads(self) -> Sequence[Hashable]:
        """Keys that the command shares with other readers: it waits for earlier commands that write one of them."""
        ...

    @property
    def barrier(self) -> bool:
        """True if the command conflicts with every other command."""
        ...

    @property
    def scheduled(self) -> bool:
        """True if the command waits only for other collectives and for an answer from its peers.

        The answer has been requested, or will be without any further call.
        """
        ...

    def step(self) -> bool:
        """Tries to run.

        Returns False while the command must wait; called again whenever its inputs may have changed.
        """
        ...

    def announce(self, blockers: Sequence[Any]) -> None:
        """Called at most once, if all commands that this command waits for, `blockers`, are `scheduled`.

        The command may request in advance the answers that it will wait for.
        """
        ...

    def cancellable(self, call: int) -> bool:
        """True if the command answers this single call, and may still be cancelled."""
        ...

    def droppable(self, cancellation: Cancellation) -> bool:
        """True if the cancellation covers the command, and no part of the command has been executed."""
        ...

    def drop(self, cancellation: Cancellation | None) -> None:
        """Fails the command because it was cancelled, and counts it."""
        ...

    def abandon(self, refusal: Refusal) -> None:
        """Fails a command that will not run any more; no effect on a finished command."""
        ...


class _Waiting:
    """A waiting command, the number of commands that it waits for, and the commands that wait for it."""

    __slots__ = ("blocker_count", "command", "done", "followers")

    def __init__(self, command: SubmittedCommand) -> None:
        self.command = command
        self.blocker_count = 0
        self.followers: list[_Waiting] = []
        self.done = False


class _Key:
    """The waiting commands that use a key: the last writer, and the readers since."""

    __slots__ = ("readers", "writer")

    def __init__(self) -> None:
        self.writer: _Waiting | None = None
        self.readers: dict[_Waiting, None] = {}


class Deferred:
    """The waiting commands of one session."""

    def __init__(self) -> None:
        self.waiting: dict[_Waiting, None] = {}
        """The waiting commands, in order of submission. Callers only test whether it is empty."""
        self._keys: dict[Hashable, _Key] = {}
        self._barrier: _Waiting | None = None
        self._ready: deque[_Waiting] = deque()
        self._pumping = False
        self._rerun = False

    def __len__(self) -> int:
        return len(self.waiting)

    def __iter__(self) -> Iterator[SubmittedCommand]:
        return iter([waiting.command for waiting in self.waiting])

    def holds(self, key: Hashable) -> bool:
        """True if a waiting command, other than a barrier, uses the key."""
        return key in self._keys

    def submit(self, command: SubmittedCommand) -> bool:
        """Runs the command now if it need not wait for earlier commands or for its inputs; otherwise queues it.

        Returns True if it ran.
        """
        if not self.waiting:
            if command.step():
                return True
            waiting = _Waiting(command)
        else:
            waiting = _Waiting(command)
            blockers = self._blockers(command)
            for blocker in blockers:
                blocker.followers.append(waiting)
            waiting.blocker_count = len(blockers)
            if not blockers and command.step():
                return True
            if blockers and all(blocker.command.scheduled for blocker in blockers):
                command.announce([blocker.command for blocker in blockers])
        self._enqueue(waiting)
        if not waiting.blocker_count:
            self._ready.append(waiting)
        return False

    def pump(self) -> None:
        """Runs the commands that can run now. A nested call makes the outer call repeat its pass."""
        self._rerun = True
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._rerun:
                self._rerun = False
                self._run_pass()
        finally:
            self._pumping = False

    def clear(self) -> list[SubmittedCommand]:
        """Removes and returns all waiting commands, oldest first."""
        commands = list(self)
        self.waiting.clear()
        self._keys.clear()
        self._ready.clear()
        self._barrier = None
        return commands

    def _run_pass(self) -> None:
        """Tries every ready command once, including those that become ready during the pass."""
        ready, self._ready = self._ready, deque()
        while ready:
            waiting = ready.popleft()
            if not waiting.command.step():
                self._ready.append(waiting)
                continue
            self._remove(waiting)
            for follower in waiting.followers:
                follower.blocker_count -= 1
                if not follower.blocker_count:
                    ready.append(follower)

    def _blockers(self, command: SubmittedCommand) -> set[_Waiting]:
        """Returns the waiting commands that must run before this command."""
        if command.barrier:
            return set(self.waiting)
        blockers: set[_Waiting] = set() if self._barrier is None else {self._barrier}
        for key in command.writes:
            users = self._keys.get(key)
            if users is not None:
                blockers.update(users.readers)
                if users.writer is not None:
                    blockers.add(users.writer)
        for key in command.reads:
            users = self._keys.get(key)
            if users is not None and users.writer is not None:
                blockers.add(users.writer)
        return {waiting for waiting in blockers if not waiting.done}

    def _enqueue(self, waiting: _Waiting) -> None:
        self.waiting[waiting] = None
        command = waiting.command
        if command.barrier:
            self._barrier = waiting
            return
        for key in command.reads:
            self._keys.setdefault(key, _Key()).readers[waiting] = None
        for key in command.writes:
            users = self._keys.setdefault(key, _Key())
            users.writer = waiting
            users.readers.clear()  # the readers are ahead of the writer, and so of everything that follows the writer

    def _remove(self, waiting: _Waiting) -> None:
        waiting.done = True
        self.waiting.pop(waiting, None)
        if self._barrier is waiting:
            self._barrier = None
        for key in (*waiting.command.reads, *waiting.command.writes):
            users = self._keys.get(key)
            if users is None:
                continue
            if users.writer is waiting:
                users.writer = None
            users.readers.pop(waiting, None)
            if users.writer is None and not users.readers:
                del self._keys[key]
