"""The socket named by `NOTIFY_SOCKET`, on which a service manager receives messages."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path


class NotifySocket:
    """Received messages are kept in `heard`, each as a dictionary of its lines, with the time at which it was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heard: list[tuple[float, dict[str, str]]] = []
        self._returned = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def close(self) -> None:
        self._socket.close()
        self.path.unlink()

    def listen(self, seconds: float) -> list[dict[str, str]]:
        """Returns the messages that arrive within `seconds`; 0: those that have arrived already."""
        begin = len(self.heard)
        deadline = time.monotonic() + seconds
        while True:
            self._socket.settimeout(max(0.0, deadline - time.monotonic()))
            try:
                message = self._socket.recv(4096).decode()
            except (TimeoutError, BlockingIOError):
                return [message for _, message in self.heard[begin:]]
            lines = dict(line.split("=", 1) for line in message.splitlines())
            self.heard.append((time.monotonic(), lines))

    def until(self, condition: Callable[[dict[str, str]], bool], seconds: float = 20.0) -> dict[str, str]:
        """Returns the next message that satisfies `condition`, after the one that the previous call returned."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.listen(0.02)
            while self._returned < len(self.heard):
                self._returned += 1
                message = self.heard[self._returned - 1][1]
                if condition(message):
                    return message
        raise AssertionError(f"not within {seconds:g} s; heard {self.heard[-5:]}")
