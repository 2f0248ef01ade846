"""Draining: nothing new is taken on, and what runs has its time to end.

A session holds the drain up until it is closed, or until its lease has run out, or for `drain_timeout`, whichever is
first. That one has nothing to do just now does not end it sooner: only its client knows whether it is done, and the
client is notified (the Draining event of its Execute streams, `Node.draining`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from hearth_proto.v1 import device_pb2
from hearthd.front.daemon.systemd import Notifier
from hearthd.front.sessions.session_table import SessionTable

log = structlog.get_logger("hearthd")

_TICK = 1.0
"""Seconds between two words to the service manager, each good for a few of them."""


class DrainingClients(Protocol):
    """The device service, which reaches the clients of a drain."""

    greeting: Callable[[], device_pb2.Event] | None
    """The first event of every new Execute stream."""

    def announce(self, event: device_pb2.Event) -> None:
        """Sends the event on every Execute stream."""


class Drain:
    """The drain of a daemon: begun by an operator's call or by a signal, over when the sessions are or their time
    is."""

    def __init__(
        self, sessions: SessionTable, clients: DrainingClients, notifier: Notifier, not_ready: Callable[[], None]
    ) -> None:
        self._sessions = sessions
        self._clients = clients
        self._notifier = notifier
        self._not_ready = not_ready
        self._deadline: float | None = None
        self._hurried = asyncio.Event()

    def begin(self) -> None:
        """Takes no new sessions from now on, is not ready, and notifies all clients."""
        if self._sessions.draining:
            return
        log.info("drain", sessions=len(self._sessions))
        self.shut()
        self._clients.greeting = self._event
        self._clients.announce(self._event())

    def shut(self) -> None:
        """Begins as `begin` does, but notifies only clients that ask."""
        self._sessions.draining = True
        self._sessions.drain_left = self.left
        self._not_ready()

    def left(self) -> float:
        """Returns the seconds that the sessions have; 0 if they have no limit."""
        return 0.0 if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def hurry(self) -> None:
        """Ends the wait for the sessions."""
        self._hurried.set()

    async def run(self, seconds: float) -> None:
        """Gives the sessions `seconds` to end; returns sooner when all have ended, or after `hurry`."""
        self._deadline = time.monotonic() + seconds
        if self._sessions.draining:  # by a call, which has set no time
            self._clients.announce(self._event())
        self.begin()
        emptied = asyncio.create_task(self._sessions.emptied.wait())
        hurried = asyncio.create_task(self._hurried.wait())
        try:
            while not emptied.done() and not hurried.done() and (left := self.left()) > 0:
                self._notifier.stopping(f"Draining {len(self._sessions)} sessions, {left:.0f} s left")
                await asyncio.wait({emptied, hurried}, timeout=min(left, _TICK), return_when=asyncio.FIRST_COMPLETED)
        finally:
            emptied.cancel()
            hurried.cancel()

    def _event(self) -> device_pb2.Event:
        return device_pb2.Event(draining=device_pb2.Draining(deadline_ns=int(self.left() * 1e9)))
