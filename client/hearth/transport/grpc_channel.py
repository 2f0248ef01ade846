"""A gRPC channel that is replaced by a new one when its connection breaks.

gRPC reconnects automatically, but after a failed attempt only after a pause, which is too long for a resumption.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import grpc

from hearth.transport.base import closed


class ReopenedChannel:
    """gRPC channel that is opened at its first use, and replaced when it is stale. Thread-safe."""

    def __init__(self, open_channel: Callable[[], grpc.Channel], target: str) -> None:
        self._open = open_channel
        self._target = target
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._stale = False
        self.closed = False

    def channel(self) -> grpc.Channel:
        """Returns the current channel, and opens one if needed. Raises `ClosedError`."""
        with self._lock:
            if self.closed:
                raise closed(self._target)
            stale_channel, channel = None, self._channel
            if channel is None or self._stale:
                stale_channel = channel
                self._channel = channel = self._open()
                self._stale = False
        if stale_channel is not None:
            stale_channel.close()
        return channel

    def mark_stale(self, channel: grpc.Channel) -> None:
        """Marks `channel` as stale, because a call on it ended with a broken connection.

        The next call uses a new channel.

        Args:
            channel: Channel of the call; ignored if it was replaced before.
        """
        with self._lock:
            if channel is self._channel:
                self._stale = True

    def close(self) -> None:
        """Closes the channel for good, which ends all calls on it."""
        with self._lock:
            self.closed = True
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
