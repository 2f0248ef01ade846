"""The limit on a tenant's work that the daemon has taken and not yet executed."""

from __future__ import annotations

import asyncio

CALL_WAIT = 5.0
"""Maximum time, in seconds, that a single call waits while the queue is full. Batches wait without a limit."""


class CommandQueue:
    """Counts the batches and calls of all sessions of a tenant, by number and bytes. A limit of 0 means no limit."""

    def __init__(self, most_commands: int = 0, most_bytes: int = 0, *, call_wait: float = CALL_WAIT) -> None:
        self.call_wait = call_wait
        """Seconds that a single call waits for room before it is refused."""
        self.commands = 0
        self.bytes = 0
        self._most_commands = most_commands
        self._most_bytes = most_bytes
        self._room: asyncio.Future[None] | None = None

    @property
    def unbounded(self) -> bool:
        """True if there is no limit."""
        return not self._most_commands and not self._most_bytes

    @property
    def full(self) -> bool:
        """True if further work has to wait. With an empty queue any work is taken, whatever its size."""
        return bool(
            (self._most_commands and self.commands >= self._most_commands)
            or (self._most_bytes and self.bytes >= self._most_bytes)
        )

    def bound(self, most_commands: int, most_bytes: int) -> None:
        """Changes the limits. Queued work stays, and waiting callers for which there is now room continue."""
        self._most_commands, self._most_bytes = most_commands, most_bytes
        self.give(0, 0)

    def count(self, size: int, commands: int = 1) -> None:
        """Counts `commands` commands of `size` bytes in total as taken."""
        self.commands += commands
        self.bytes += size

    def give(self, size: int, commands: int = 1) -> None:
        """Releases the room of commands that were executed or will never be executed."""
        self.commands -= commands
        self.bytes -= size
        if self._room is not None and not self.full:
            if not self._room.done():
                self._room.set_result(None)
            self._room = None

    async def wait_for_room(self) -> None:
        """Returns when the queue is not full."""
        while self.full:
            if self._room is None:
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)
