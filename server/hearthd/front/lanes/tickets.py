"""Tickets that let a client's connection become a lane, or one for bulk data: single use, valid for seconds."""

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
_MOST = 4096
"""Tickets that are not redeemed; a further one replaces the oldest, whose client continues without a lane."""


class TicketHolder(Protocol):
    """The holder of a ticket: an Execute stream that may continue over a lane, a channel that gets a connection for
    bulk data."""

    @property
    def session(self) -> Session: ...
    @property
    def kind(self) -> str:
        """The kind of connection: `lane`, `segments`, `stripe`."""
        ...

    async def hand_over(self, connection: int) -> None:
        """The device process gets `connection`. Raises OSError where that cannot be."""


def check_open(connection: int) -> None:
    """Raises `ConnectionError` where the client has closed the other end: a connection that waited for the front, which
    may have been paused, is handed to a device process only while its client is there. Takes nothing from it."""
    look = socket.socket(fileno=connection)
    try:
        if not look.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            raise ConnectionResetError("the client has closed its connection")
    except BlockingIOError:
        pass  # it waits for an answer
    finally:
        look.detach()


class LaneTickets:
    """Tickets by hash, oldest first: the time of a look-up reveals nothing about existing tickets. Pure: the clock is
    passed in."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        """Returns the time that the life of tickets is measured by, in seconds."""
        self._issued: dict[bytes, tuple[float, TicketHolder]] = {}

    def __len__(self) -> int:
        return len(self._issued)

    def issue(self, attachment: TicketHolder, size: int = TICKET_BYTES) -> bytes:
        self._forget()
        ticket = secrets.token_bytes(size)
        self._issued[_key(ticket)] = (self.clock() + LIFETIME, attachment)
        return ticket

    def redeem(self, ticket: bytes) -> TicketHolder | None:
        """Redeems a ticket, once, and returns its holder; None for one that is unknown, used or too old."""
        until, attachment = self._issued.pop(_key(ticket), (0.0, None))
        return attachment if until > self.clock() else None

    def _forget(self) -> None:
        now = self.clock()
        while self._issued:
            oldest = next(iter(self._issued))
            if self._issued[oldest][0] > now and len(self._issued) < _MOST:
                return
            del self._issued[oldest]


def _key(ticket: bytes) -> bytes:
    return hashlib.sha256(ticket).digest()
