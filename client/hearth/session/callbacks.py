"""Callbacks of events: functions that the client calls when the device has reached an event.

The receiving thread only passes a callback on; another thread or an event loop calls it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hearth.session.connection import Connection
    from hearth.session.reply import Reply

log = logging.getLogger("hearth")


class DoneCallback:
    """A callback for the answer to one request. It is not called if the request fails."""

    def __init__(
        self,
        reply: Reply,
        deliver: Callable[[Callable[[], None]], object],
        call: Callable[[], object],
        subject: object,
    ) -> None:
        """Registers the callback.

        Args:
            reply: Reply to the request, for which no other thread waits.
            deliver: Passes a function on to the thread or event loop that calls it; must not block. Called once, by
                the receiving thread, or at once if the answer has arrived.
            call: The callback.
            subject: The event that the request names, which is kept until the answer has arrived.
        """
        self._reply = reply
        self._deliver: Callable[[Callable[[], None]], object] | None = deliver
        self._call = call
        self._subject = subject
        self._lock = threading.Lock()
        reply.listen(self._answered)

    def _answered(self) -> None:
        with self._lock:
            deliver, self._deliver = self._deliver, None
        if deliver is not None:
            deliver(self._run)

    def _run(self) -> None:
        self._reply.unlisten()
        if self._reply.error is None:
            self._call()


class CallbackThread:
    """The thread that calls the callbacks of one connection, in the order in which they become due.

    It exists from the first callback until the connection is closed.
    """

    def __init__(self, connection: Connection) -> None:
        self._due: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        name = f"hearth-callbacks-{connection.ordinal}"
        threading.Thread(target=_call_all, args=(self._due,), name=name, daemon=True).start()

    def deliver(self, call: Callable[[], None]) -> None:
        """Has the thread call a function. Does not block.

        Args:
            call: The function; its exception is logged.
        """
        self._due.put(call)

    def close(self) -> None:
        """Ends the thread after the callbacks that are due. Does not wait for them."""
        self._due.put(None)

    def forked(self) -> None:
        """Does nothing: the thread and its callbacks belong to the parent process."""


def _call_all(due: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := due.get()) is not None:
        try:
            call()
        except Exception:
            log.exception("exception in a callback of an event")
        del call
