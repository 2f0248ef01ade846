"""Passing of file descriptors to and from the front, over a socket next to the link. Device-handle thread only."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from hearth_proto import descriptors
from hearthd.device.platform.event_loop import Loop
from hearthd.device.platform.log import ProcessLog

Receiver = Callable[[dict[str, Any], list[int]], None]
"""Handles a message (its body and its descriptors), and takes ownership of the descriptors."""


class DescriptorSocket:
    """The device process's end of the socket. Each message has a `kind`, and each kind has one receiver."""

    def __init__(self, end: socket.socket, loop: Loop, journal: ProcessLog) -> None:
        self._end = end
        self._loop = loop
        self._journal = journal
        self._receivers: dict[str, Receiver] = {}
        end.setblocking(False)
        loop.add_reader(end.fileno(), lambda _events: self.receive())

    def register(self, kind: str, receiver: Receiver) -> None:
        """Registers `receiver` for the messages of this kind; the receiver takes ownership of their descriptors."""
        self._receivers[kind] = receiver

    def send(self, kind: str, body: dict[str, Any], files: Sequence[int]) -> None:
        """Sends one message. Raises OSError if the socket currently accepts no more."""
        descriptors.send(self._end, {**body, "kind": kind}, files)

    def receive(self) -> None:
        """Handles all messages that have arrived.

        The loop does so too; code that has received a later message over another socket calls this method to handle the
        earlier ones first.
        """
        while True:
            try:
                message = descriptors.receive(self._end)
            except BlockingIOError:
                return
            except (OSError, ValueError) as error:
                self._journal.warning("descriptors", error=str(error))
                return
            if message is None:  # the link also ends, and is handled by its reader
                self._loop.remove_reader(self._end.fileno())
                return
            body, files = message
            receiver = self._receivers.get(str(body.get("kind")))
            if receiver is None:
                self._journal.warning("descriptors", error=f"no receiver takes {body.get('kind')!r}")
                for file in files:
                    os.close(file)
            else:
                receiver(body, files)
