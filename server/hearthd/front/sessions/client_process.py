"""The process of a client on the same host, whose end the kernel reports.

A connection that breaks does not mean that its client has ended, so that the session is kept for its lease. The end of
the client's process is certain: its pidfd becomes readable. A process that is stopped or has lost its connection does
not count as ended. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable
from contextvars import ContextVar

calling_process: ContextVar[int] = ContextVar("calling_process", default=0)
"""Process id of the client of the running call, as the kernel reports it. 0: unknown, as for every call over gRPC."""


class ClientProcess:
    """The process that opened a session, watched until it ends or the watch is closed."""

    def __init__(self, pid: int, descriptor: int) -> None:
        """Stores the process.

        Args:
            pid: Process id.
            descriptor: The pidfd of the process, which this object owns.
        """
        self.pid = pid
        self.ended = False
        """True once the process has ended."""
        self._descriptor = descriptor
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self, on_end: Callable[[], None]) -> None:
        """Calls `on_end` from the event loop, once, when the process ends.

        Args:
            on_end: Function without arguments.
        """

        def on_readable() -> None:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            if not poll.poll(0):  # a spurious event: the process runs
                return
            self.ended = True
            self.close()
            on_end()

        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, on_readable)

    def close(self) -> None:
        """Stops watching and closes the pidfd. A second call does nothing."""
        if self._descriptor < 0:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
