"""What goes back to the pool a piece at a time: very much of it in one go would keep everybody else waiting.

A clearing is a row of things to give back. Few are given back at once; many, some each time the loop goes round. Those
of one session in their order, those of several sessions by turns.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Generic, TypeVar

from hearth_proto.reasons import Refusal
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.stream_pool import PooledStream

T = TypeVar("T")

STRETCH_S = 2e-4
"""How long many may keep this thread each time."""

PIECE = 16
"""Things before the clock is looked at."""

FEW = 64
"""So many are given back at once."""


class FreeQueue(Generic[T]):
    """Some things. `give` gives one back, on the track that `home` names, if any."""

    __slots__ = ("_give", "_home", "_left", "_then", "failure", "over")

    def __init__(
        self, things: Iterable[T], home: Callable[[T], PooledStream | None], give: Callable[[T], None]
    ) -> None:
        self._left = deque(things)  # each is dropped when it has been given back, not all of them together
        self._home = home
        self._give = give
        self._then: list[Callable[[], None]] = []
        self.over = False
        self.failure: Refusal | None = None
        """The first that giving back met; the rest was given back all the same."""

    def __len__(self) -> int:
        return len(self._left)

    @property
    def blocked(self) -> bool:
        """Whether the next has to wait until its track has come further: the driver blocks who gives it too much."""
        track = self._home(self._left[0]) if self._left else None
        return track is not None and track.budget <= 0

    def then(self, callback: Callable[[], None]) -> None:
        """`callback` when all is given back."""
        if self.over:
            callback()
        else:
            self._then.append(callback)

    def advance(self, most: int, *, heed: bool = True) -> bool:
        """Up to so many; whether that was all. `heed`: not beyond what their tracks take."""
        left, give = self._left, self._give
        for _ in range(min(most, len(left))):
            if heed and self.blocked:
                return False
            try:
                give(left.popleft())
            except Refusal as refusal:
                self.failure = self.failure or refusal
        if left:
            return False
        self._end()
        return True

    def _end(self) -> None:
        self.over = True
        callbacks, self._then = self._then, []
        for callback in callbacks:
            callback()


class DeferredFree:
    """Belongs to the device-handle thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lines: dict[DeviceSession, deque[FreeQueue[Any]]] = {}

    def begin(
        self,
        session: DeviceSession,
        things: Collection[T],
        home: Callable[[T], PooledStream | None],
        give: Callable[[T], None],
    ) -> FreeQueue[T]:
        """Gives them back, behind what the session is giving back already; few at once."""
        clearing = FreeQueue(things, home, give)
        if len(things) > FEW or not clearing.advance(FEW, heed=False):
            self._lines.setdefault(session, deque()).append(clearing)
        return clearing

    def latest(self, session: DeviceSession) -> FreeQueue[Any] | None:
        """The last of what the session is giving back; None: it is all given back."""
        line = self._lines.get(session)
        return line[-1] if line else None

    def blocked(self, session: DeviceSession) -> bool:
        """Whether what it gives back waits for the device, which does not come further."""
        line = self._lines.get(session)
        return line is not None and line[0].blocked

    def after(self, session: DeviceSession, callback: Callable[[], None]) -> None:
        """`callback` when all that the session is giving back now is given back; at once where that is nothing."""
        latest = self.latest(session)
        if latest is None:
            callback()
        else:
            latest.then(callback)

    def after_all(self, callback: Callable[[], None]) -> bool:
        """The same for all sessions; False, and no call, where there is nothing to wait for."""
        left = len(self._lines)
        if not left:
            return False

        def one() -> None:
            nonlocal left
            left -= 1
            if not left:
                callback()

        for line in tuple(self._lines.values()):
            line[-1].then(one)
        return True

    @property
    def waiting(self) -> bool:
        """Whether anything is still to be given back."""
        return bool(self._lines)

    @property
    def more(self) -> bool:
        """Whether something could be given back at once."""
        return bool(self._lines) and any(not line[0].blocked for line in self._lines.values())

    def pump(self) -> None:
        """Gives some back, for a short while."""
        if not self._lines:
            return
        until = self._clock() + STRETCH_S
        while True:
            advanced = False
            for session in tuple(self._lines):
                line = self._lines[session]
                if line[0].blocked:
                    continue
                advanced = True
                if line[0].advance(PIECE):
                    line.popleft()
                    if not line:
                        del self._lines[session]
                if self._clock() > until:
                    self._rotate(session)
                    return
            if not advanced:
                return

    def _rotate(self, session: DeviceSession) -> None:
        """Whoever was last stands behind the others the next time."""
        line = self._lines.pop(session, None)
        if line is not None:
            self._lines[session] = line
