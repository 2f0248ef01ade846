"""What sees a session's commands, one by one, while a trace or marks are on."""

from __future__ import annotations

from typing import Any, Protocol

from hearthd.device.session.launch_plan import LaunchPlan
from hearthd.device.streams.stream_pool import PooledStream


class Record(Protocol):
    """One command in a trace, or between marks; see `hearthd.device.profiling.trace`."""

    def begin(self, track: PooledStream, size: int, plan: LaunchPlan | None) -> None:
        """It gives work to the track now; see `hearthd.device.context.DeviceContext.begin`."""
        ...

    def enter(self) -> None:
        """The command is tried: what is given to the device from now on is its."""
        ...

    def leave(self, done: bool) -> None:
        """It has run, or cannot go on yet."""
        ...

    def failed(self, reason: str) -> None:
        """Why it did not do what it should."""
        ...

    def settle(self) -> None:
        """It is over for the host: it has run, or will not."""
        ...

    def drop(self) -> None:
        """It is no command of its own."""
        ...


class Observer(Protocol):
    """What sees a session's commands, one by one; see `hearthd.device.profiling.trace`."""

    def record(self, origin: Any) -> Record:
        """A command (`hearthd.device.operation.Origin`) has arrived."""
        ...

    def close(self) -> None:
        """The session is over."""
        ...
