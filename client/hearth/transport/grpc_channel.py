"""A gRPC channel that is left behind for a fresh one when its connection breaks.

gRPC reconnects by itself, but only after a pause where an attempt failed, and a pause is what a resume has no time for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import grpc

from hearth.transport import errors


class ReopenedChannel:
    """Channel that is opened on first use, and replaced when it is stale; safe from any thread."""

    def __init__(self, open_channel: Callable[[], grpc.Channel], target: str) -> None:
        self._open = open_channel
        self._target = target
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._stale = False
        self.closed = False

    def channel(self) -> grpc.Channel:
        """The channel to use now. Raises `ClosedError`."""
        with self._lock:
            if self.closed:
                raise errors.closed(self._target)
            left, channel = None, self._channel
            if channel is None or self._stale:
                left = channel
                self._channel = channel = self._open()
                self._stale = False
        if left is not None:
            left.close()
        return channel

    def broke(self, channel: grpc.Channel) -> None:
        """A call on this one ended because the connection did; the next call takes another."""
        with self._lock:
            if channel is self._channel:
                self._stale = True

    def close(self) -> None:
        """Ends all that is open on it, for good."""
        with self._lock:
            self.closed = True
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
