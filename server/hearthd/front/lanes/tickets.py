"""Tickets that let a client's connection become a lane, or a bulk data connection.

A ticket can be used once, within `LIFETIME` seconds.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
import time
from collections.abc import Callable
from typing import Protocol

from hearthd.front.sessions.session import Session

TICKET_BYTES = 32
LIFETIME = 5.0
"""Time, in seconds, for which a ticket is valid."""
_MAX_ISSUED = 4096
"""Maximum number of tickets that are not redeemed. A further ticket replaces the oldest, whose client continues without
a lane."""


class TicketHolder(Protocol):
    """The object for which a ticket is issued.

    It is an Execute stream that may continue over a lane, or a channel that gets a bulk data connection.
    """

    @property
    def session(self) -> Session:
        """The session that the connection will serve."""
        ...

    @property
    def kind(self) -> str:
        """The kind of connection: `lane`, `segments`, `stripe` or `ipc`."""
        ...

    async def hand_over(self, connection: int) -> None:
        """Hands `connection` to the device process. Raises OSError if that is not possible."""


def check_open(connection: int) -> None:
    """Raises `ConnectionError` if the client has closed the other end.

    The connection may have waited while the front was paused, and is handed to a device process only if its client is
    still there. Reads nothing from it.
    """
    peeked = socket.socket(fileno=connection)
    try:
        if not peeked.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            raise ConnectionResetError("the client has closed its connection")
    except BlockingIOError:
        pass  # the client waits for an answer
    finally:
        peeked.detach()


class LaneTickets:
    """Issued tickets by hash, oldest first.

    Because of the hash, the duration of a look-up reveals nothing about existing tickets. Pure: the clock is passed in.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        """Returns the time, in seconds, with which the lifetime of tickets is measured."""
        self._issued: dict[bytes, tuple[float, TicketHolder]] = {}

    def __len__(self) -> int:
        return len(self._issued)

    def issue(self, holder: TicketHolder, size: int = TICKET_BYTES) -> bytes:
        """Returns a new random ticket of `size` bytes for the holder, and forgets expired tickets."""
        self._drop_expired()
        ticket = secrets.token_bytes(size)
        self._issued[_key(ticket)] = (self.clock() + LIFETIME, holder)
        return ticket

    def redeem(self, ticket: bytes) -> TicketHolder | None:
        """Redeems a ticket, once, and returns its holder; None if the ticket is unknown, was used or has expired."""
        expiry, holder = self._issued.pop(_key(ticket), (0.0, None))
        return holder if expiry > self.clock() else None

    def _drop_expired(self) -> None:
        now = self.clock()
        while self._issued:
            oldest = next(iter(self._issued))
            if self._issued[oldest][0] > now and len(self._issued) < _MAX_ISSUED:
                return
            del self._issued[oldest]


def _key(ticket: bytes) -> bytes:
    return hashlib.sha256(ticket).digest()
