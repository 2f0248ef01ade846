"""Wait of a command for driver work that needs an idle device, and of which the result serves later commands too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hearth_proto.reasons import Refusal
from hearthd.device.context import DeviceContext
from hearthd.device.resources.idle_work import Waiting
from hearthd.device.session.module import FunctionEntry
from hearthd.device.session.session import DeviceSession


class IdleLoad:
    """Wait of one command until `loaded` returns True. `load` makes it so, while no kernel runs; it may raise Refusal.

    Several commands may wait for the same work, each with its own `IdleLoad`.
    """

    def __init__(
        self,
        device: DeviceContext,
        session: DeviceSession,
        description: str,
        loaded: Callable[[], bool],
        load: Callable[[], None],
    ) -> None:
        self._device = device
        self._session = session
        self._description = description
        self._loaded = loaded
        self._load = load
        self._refusal: Refusal | None = None
        self._waiting: Waiting | None = None
        """The queued job of this wait, pending or done; None if there is none."""
        self.retry_condition: Callable[[], bool] | None = None
        """Returns True if another attempt may succeed; None unless the wait was refused at the time limit for loads."""

    def ready(self) -> bool:
        """Returns False while the work waits for an idle device. Raises Refusal if the wait or the work was refused."""
        if not self._loaded() and self._refusal is None and self._waiting is None:
            self._waiting = self._device.idle_work.load(self._session, self._description, self._run, self._refuse)
        if self._loaded():
            self.end()
            return True
        if self._refusal is not None:
            raise self._refusal
        return False

    def end(self) -> None:
        """Removes the queued job, if there is one. Further calls have no effect."""
        if self._waiting is not None:
            self._device.idle_work.drop(self._waiting)

    def _run(self) -> None:
        try:
            if not self._loaded():
                self._load()
        except Refusal as refusal:
            self._refusal = refusal
        self._device.kick(None)  # commands of other sessions may wait for the same work

    def _refuse(self, refusal: Refusal) -> None:
        self._refusal, self.retry_condition = refusal, self._device.idle_work.retry_condition()
        self._device.telemetry.loads_refused += 1
        self._device.kick(self._session)


class LaunchMemoryWait:
    """Wait of one launch until the memory exists that it needs: local memory, and a buffer if the kernel prints."""

    def __init__(self, device: DeviceContext, session: DeviceSession, entry: FunctionEntry) -> None:
        self._device = device
        self._session = session
        self._entry = entry
        self._load: IdleLoad | None = None

    def ready(self) -> bool:
        """Returns True once the function, whose module is loaded, can be launched while other kernels run.

        Raises Refusal if the wait was refused, by this launch or an earlier one, or if the driver has no memory left.
        """
        entry, server = self._entry, self._device.server
        function, prints = entry.resolve(), entry.module.prints is not None
        if server.has_launch_memory(function, prints):
            self.end()
            entry.has_launch_memory = True
            return True
        if entry.refused is not None and not entry.refused[1]():
            raise entry.refused[0]
        if self._load is None:
            self._load = IdleLoad(
                self._device,
                self._session,
                f"the first launch of {entry.name}",
                partial(server.has_launch_memory, function, prints),
                partial(server.provide_launch_memory, function, prints),
            )
        try:
            return self._load.ready()
        except Refusal as refusal:
            if self._load.retry_condition is not None:
                entry.refused = refusal, self._load.retry_condition
            raise

    def end(self) -> None:
        """Ends the wait of a launch that will not run, for example after the end of its session."""
        if self._load is not None:
            self._load.end()
