"""Closed sessions whose work in a device process has not ended, and the end of the process for that. Pure: times are
passed in.

A running kernel cannot be cancelled, only its process be ended. A closed session fetches nothing any more, so a process
that no other session uses ends soon after, with what the session held. One that others use is never ended for it: they
continue, and the memory stays until the kernel ends or the last of them has left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

GRACE = 2.0
"""Seconds that work may run on. A client's close waits as long, so what ends by then is a close like any other; more
would keep the device's memory, and the next session, waiting for results that no client can fetch."""
CLEARING = 10.0
"""Seconds for a session whose work has ended and whose memory is freed piece by piece: that ends by itself, and a
process that is warm is worth waiting for."""
NAMES = 4
"""Kernels that are named of each."""


@dataclass(eq=False)
class LingeringSession:
    """A session that was closed at `since`."""

    session: str
    tenant: str
    since: float
    busy: bool = True
    """The device still works for it, as far as is known."""
    kernels: tuple[str, ...] = ()
    """Kernels that have not ended, oldest first; none if that is not known, or if they ran as a graph."""
    asked: float = float("-inf")
    """The time at which the process was asked last."""
    told: bool = False
    """The log has a line about it."""
    grace: float = GRACE
    """Seconds that its work may run on."""

    @property
    def due(self) -> float:
        """The time at which its grace is over."""
        return self.since + (self.grace if self.busy else CLEARING)

    @property
    def what(self) -> str:
        """Returns the work that does not end, for people."""
        if not self.busy:
            return f"what session {self.session} held"
        names = ", ".join(self.kernels[:NAMES]) + (", ..." if len(self.kernels) > NAMES else "")
        return f"{f'kernel {names}' if names else 'work'} of session {self.session}"


class LingeringSessions:
    """The lingering sessions of one process, by the number of the channel that each had there."""

    def __init__(self, grace: float = GRACE) -> None:
        """`grace`: seconds that work of a closed session may run on."""
        self._grace = grace
        self._each: dict[int, LingeringSession] = {}

    def __iter__(self) -> Iterator[LingeringSession]:
        return iter(self._each.values())

    def __len__(self) -> int:
        return len(self._each)

    # ---- what happens ----

    def left(self, channel: int, session: str, tenant: str, now: float) -> None:
        """A session is closed here."""
        self._each.setdefault(channel, LingeringSession(session, tenant, now, grace=self._grace))

    def gone(self, channel: int) -> None:
        """All that it had here is done and given back."""
        self._each.pop(channel, None)

    def ask(self, now: float) -> None:
        """The process is asked what still runs."""
        for each in self:
            each.asked = now

    def hear(self, leaving: Any) -> None:
        """Takes the process's answer: channel (as JSON has keys), then its work that still runs. A process that does
        not answer, or does not know a session, is busy with it."""
        known: Mapping[str, Any] = leaving if isinstance(leaving, dict) else {}
        for channel, each in self._each.items():
            said = known.get(str(channel))
            if isinstance(said, dict):
                each.busy = bool(said.get("busy", True))
                each.kernels = tuple(str(name) for name in said.get("kernels", ()))
            else:
                each.busy = True

    # ---- what follows ----

    def alone(self, channels: Collection[int]) -> bool:
        """Returns True if no other session uses the process. `channels`: all that it has, theirs among them."""
        return bool(self._each) and all(channel in self._each for channel in channels)

    def must_drain(self, channels: Collection[int]) -> bool:
        """Returns True if a new session has to wait: beside work that may never end it would keep the process from
        ending."""
        return self.alone(channels) and any(each.busy for each in self)

    def to_ask(self, now: float) -> bool:
        """Returns True if the time of one is over and the process has not been asked since."""
        return any(each.asked < each.due <= now for each in self)

    def end(self, channels: Collection[int], now: float) -> bool:
        """Returns True if the process is to be ended."""
        return self.alone(channels) and all(each.due <= now for each in self)

    def stuck(self, now: float) -> list[LingeringSession]:
        """Returns the sessions whose time is over, oldest first."""
        return sorted((each for each in self if each.due <= now), key=lambda each: each.since)

    def wake(self, now: float) -> float | None:
        """Returns the time at which the next one's grace is over."""
        return min((each.due for each in self if each.due > now), default=None)
