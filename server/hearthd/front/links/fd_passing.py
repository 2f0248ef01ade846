"""Passing of file descriptors to and from one device process, over the socket that accompanies its link."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from hearth_proto import descriptors

log = structlog.get_logger("hearthd.link")

Receiver = Callable[[dict[str, Any], list[int]], None]
"""Handles the body and the descriptors of a message. The receiver owns the descriptors."""


class Descriptors:
    """The front's end of the socket. Each message names its `kind`, and each kind has one receiver."""

    def __init__(self, socket_end: socket.socket, device: int) -> None:
        self._socket = socket_end
        self._device = device
        self._receivers: dict[str, Receiver] = {}
        socket_end.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(socket_end.fileno(), self._on_readable)
        self._open = True

    def on(self, kind: str, receiver: Receiver) -> None:
        """Sets the receiver of messages of this kind."""
        self._receivers[kind] = receiver

    def send(self, kind: str, body: dict[str, Any], files: Sequence[int]) -> None:
        """Sends one message. Raises OSError if the process has ended, or the socket is full."""
        if not self._open:
            raise ConnectionResetError("the device process has ended")
        descriptors.send(self._socket, {**body, "kind": kind}, files)

    def close(self) -> None:
        """Closes the socket. A second call does nothing."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _on_readable(self) -> None:
        while self._open:
            try:
                message = descriptors.receive(self._socket)
            except BlockingIOError:
                return
            except (OSError, ValueError) as error:
                log.warning("descriptors", device=self._device, error=str(error))
                return
            if message is None:
                self.close()
                return
            body, files = message
            receiver = self._receivers.get(str(body.get("kind")))
            if receiver is None:
                log.warning("descriptors", device=self._device, error=f"no receiver for {body.get('kind')!r}")
                for file in files:
                    os.close(file)
            else:
                receiver(body, files)
