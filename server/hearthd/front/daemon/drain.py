"""Draining: no new sessions are accepted, and running sessions have time to end.

A session delays the end of the drain until it is closed, its lease runs out, or `drain_timeout` has passed. An idle
session is not closed earlier, because only its client knows whether it is done. The client is notified (by the Draining
event on its Execute streams, and by `Node.draining`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from hearth_proto.v1 import device_pb2
from hearthd.front.daemon.systemd import Notifier
from hearthd.front.rpc.device_service import DeviceService
from hearthd.front.sessions.session_table import SessionTable

log = structlog.get_logger("hearthd")

_NOTIFY_INTERVAL_S = 1.0
"""Interval, in seconds, between messages to the service manager. Each message extends the time limit by several
intervals."""


class Drain:
    """The drain of a daemon.

    It is started by an operator's call or by a signal, and ends when all sessions have ended or the time is up.
    """

    def __init__(
        self, sessions: SessionTable, clients: DeviceService, notifier: Notifier, not_ready: Callable[[], None]
    ) -> None:
        self._sessions = sessions
        self._clients = clients
        self._notifier = notifier
        self._not_ready = not_ready
        self._deadline: float | None = None
        self._wait_ended = asyncio.Event()

    def begin(self) -> None:
        """Accepts no new sessions from now on, reports not ready, and notifies all clients."""
        if self._sessions.draining:
            return
        log.info("drain", sessions=len(self._sessions))
        self.stop_admission()
        self._clients.greeting = self._event
        self._clients.announce(self._event())

    def stop_admission(self) -> None:
        """Accepts no new sessions from now on, and reports not ready, without an event to clients."""
        self._sessions.draining = True
        self._sessions.drain_left = self.seconds_left
        self._not_ready()

    def seconds_left(self) -> float:
        """Returns the time until running sessions are closed, in seconds. 0: there is no limit yet."""
        return 0.0 if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def end_wait(self) -> None:
        """Ends the wait for the sessions."""
        self._wait_ended.set()

    async def run(self, seconds: float) -> None:
        """Waits up to `seconds` for the sessions to end. Returns earlier if all have ended, or after `end_wait`."""
        self._deadline = time.monotonic() + seconds
        if self._sessions.draining:  # started by a call, which sets no time limit
            self._clients.announce(self._event())
        self.begin()
        emptied = asyncio.create_task(self._sessions.emptied.wait())
        wait_ended = asyncio.create_task(self._wait_ended.wait())
        try:
            while not emptied.done() and not wait_ended.done() and (remaining := self.seconds_left()) > 0:
                self._notifier.stopping(f"Draining {len(self._sessions)} sessions, {remaining:.0f} s left")
                await asyncio.wait(
                    {emptied, wait_ended},
                    timeout=min(remaining, _NOTIFY_INTERVAL_S),
                    return_when=asyncio.FIRST_COMPLETED,
                )
        finally:
            emptied.cancel()
            wait_ended.cancel()

    def _event(self) -> device_pb2.Event:
        return device_pb2.Event(draining=device_pb2.Draining(deadline_ns=int(self.seconds_left() * 1e9)))
