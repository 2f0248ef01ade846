"""The thread that calls functions of the program when the device reaches an event."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hearth.session.connection import Connection

log = logging.getLogger("hearth")


class CallbackThread:
    """The thread that calls the callbacks of one connection, in the order in which they become due.

    It exists from the first callback until the connection is closed.
    """

    def __init__(self, connection: Connection) -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        name = f"hearth-callbacks-{connection.ordinal}"
        threading.Thread(target=_call_all, args=(self._queue,), name=name, daemon=True).start()

    def deliver(self, call: Callable[[], None]) -> None:
        """Has the thread call a function. Does not block.

        Args:
            call: The function; its exception is logged.
        """
        self._queue.put(call)

    def close(self) -> None:
        """Ends the thread after the callbacks that are due. Does not wait for them."""
        self._queue.put(None)

    def forked(self) -> None:
        """Does nothing: the thread and its callbacks belong to the parent process."""


def _call_all(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := queue.get()) is not None:
        try:
            call()
        except Exception:
            log.exception("exception in a callback of an event")
        del call
