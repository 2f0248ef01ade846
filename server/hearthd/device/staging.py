"""Host memory that copies go through, capped: a copy that finds none waits, it does not fail."""

from __future__ import annotations

from collections.abc import Callable

from hearthd.device.server import ComputeServer, HostBuffer


class Staging:
    """Buffers on loan until the copy through them is done."""

    def __init__(self, server: ComputeServer, cap: int, on_room: Callable[[], None]) -> None:
        self._server = server
        self._cap = cap
        self._on_room = on_room
        self.in_use = 0
        self._starved = False

    def acquire(self, size: int) -> HostBuffer | None:
        """At least `size` bytes, or None while the cap is reached; one copy larger than the cap may go alone."""
        if self.in_use and self.in_use + size > self._cap:
            self._starved = True
            return None
        buffer = self._server.allocate_host(size)
        if buffer is None:
            self._starved = True
            return None
        self.in_use += buffer.size
        return buffer

    def poll(self) -> None:
        """Lets waiting copies try again when the backend has more memory for them."""
        if self._starved and self._server.host_grown():
            self._starved = False
            self._on_room()

    def release(self, buffer: HostBuffer) -> None:
        self.in_use -= buffer.size
        self._server.free_host(buffer)
        if self._starved:
            self._starved = False
            self._on_room()
