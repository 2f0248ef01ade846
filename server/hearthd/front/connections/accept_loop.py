"""Accept loops over listening sockets, for listeners that must count connections from the first byte on.

`asyncio.Server` reports a connection only after the TLS handshake. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine
from typing import Any

RETRY_S = 0.1
"""Delay, in seconds, before accepting is tried again after descriptors or memory ran out."""
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Accepted = Callable[[socket.socket, Any], None]
"""Handles a connection, and the address that the kernel gives for its peer."""


class AcceptLoop:
    """The listening sockets of one listener, and the tasks that handle its connections."""

    def __init__(
        self, name: str, on_accepted: Accepted, on_shortage: Callable[[OSError], None], *, retry_s: float = RETRY_S
    ) -> None:
        """Creates the loop.

        `name` is the name of its tasks. `on_shortage` is called when a connection cannot be accepted because there are
        no descriptors or no memory; accepting is tried again after `retry_s` seconds.
        """
        self._retry_s = retry_s
        self._name, self._on_accepted, self._on_shortage = name, on_accepted, on_shortage
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self, listener: socket.socket) -> None:
        """Starts to accept connections on a non-blocking listening socket, which this object owns from now on."""
        self._listeners.append(listener)
        self.start_task(self._accept(listener))

    def start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs `work` in a task that `stop` cancels, and returns the task."""
        task = asyncio.create_task(work, name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        """Accepts no further connection, cancels the tasks and closes the listening sockets."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _SHORTAGES:
                    self._on_shortage(error)
                    await asyncio.sleep(self._retry_s)
                else:  # the peer has disconnected; the sleep lets the event loop run if the error persists
                    await asyncio.sleep(0)
                continue
            self._on_accepted(connection, address)
