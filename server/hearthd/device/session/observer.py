"""Observer: the interface by which traces and annotations observe the commands of a session."""

from __future__ import annotations

from typing import Any, Protocol

from hearthd.device.session.launch_plan import LaunchPlan
from hearthd.device.streams.stream_pool import PooledStream


class Record:
    """Record of one command in a trace or in annotations; see `hearthd.device.profiling.trace`.

    A method that a subclass does not override has no effect.
    """

    __slots__ = ()

    def begin(self, track: PooledStream, size: int, plan: LaunchPlan | None) -> None:
        """Called when the command submits work to the track; see `hearthd.device.context.DeviceContext.begin`."""

    def enter(self) -> None:
        """Called when the command is tried; work that is submitted until `leave` belongs to it."""

    def leave(self, done: bool) -> None:
        """Called when the attempt ends. `done` is False if the command cannot continue yet."""

    def failed(self, reason: str) -> None:
        """Records the reason why the command failed."""

    def settle(self) -> None:
        """Called when the host has finished with the command: it has run, or will not run."""

    def drop(self) -> None:
        """Removes the record, because it is not that of a separate command."""


class Observer(Protocol):
    """Observer of each command of a session; see `hearthd.device.profiling.trace`."""

    def record(self, origin: Any) -> Record:
        """Records the arrival of a command (`hearthd.device.operation.Origin`)."""
        ...

    def close(self) -> None:
        """Called at the end of the session."""
        ...
