"""The limit on a tenant's work that the daemon has taken and not yet executed."""

from __future__ import annotations

import asyncio

CALL_WAIT = 5.0
"""Maximum time, in seconds, that a single call waits while the queue is full. Batches wait without a limit."""


class CommandQueue:
    """Counts the batches and calls of all sessions of a tenant, by number and bytes. A limit of 0 means no limit."""

    def __init__(self, max_commands: int = 0, max_bytes: int = 0, *, call_wait: float = CALL_WAIT) -> None:
        self.call_wait = call_wait
        """Seconds that a single call waits for room before it is refused."""
        self.commands = 0
        self.bytes = 0
        self._max_commands = max_commands
        self._max_bytes = max_bytes
        self._room_waiter: asyncio.Future[None] | None = None

    @property
    def unbounded(self) -> bool:
        """True if there is no limit."""
        return not self._max_commands and not self._max_bytes

    @property
    def full(self) -> bool:
        """True if further work must wait. With an empty queue any work is taken, whatever its size."""
        return bool(
            (self._max_commands and self.commands >= self._max_commands)
            or (self._max_bytes and self.bytes >= self._max_bytes)
        )

    def set_limits(self, max_commands: int, max_bytes: int) -> None:
        """Changes the limits. Queued work stays, and waiting callers for which there is now room continue."""
        self._max_commands, self._max_bytes = max_commands, max_bytes
        self.release(0, 0)

    def count(self, size: int, commands: int = 1) -> None:
        """Counts `commands` commands of `size` bytes in total as taken."""
        self.commands += commands
        self.bytes += size

    def release(self, size: int, commands: int = 1) -> None:
        """Releases the room of commands that were executed or will never be executed."""
        self.commands -= commands
        self.bytes -= size
        if self._room_waiter is not None and not self.full:
            if not self._room_waiter.done():
                self._room_waiter.set_result(None)
            self._room_waiter = None

    async def wait_for_room(self) -> None:
        """Returns when the queue is not full."""
        while self.full:
            if self._room_waiter is None:
                self._room_waiter = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room_waiter)
