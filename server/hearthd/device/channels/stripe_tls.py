"""TLS on a stripe: a certificate that the front creates for this process alone, and the client's proof inside TLS.

The node's key stays in the front, because kernels of tenants run in this process.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from hearth_proto.frames import HEADER, FrameError, Kind
from hearth_proto.pipes import receive_within
from hearth_proto.stripes import TICKET_BYTES, TICKET_NAME

Guard = Callable[[socket.socket, float], ssl.SSLSocket]
"""Makes the TLS handshake of a connection that becomes a stripe, until a deadline, and checks the client's secret."""


class Guards:
    """Factory of guards, which share one certificate. Device-handle thread only."""

    def __init__(self) -> None:
        self._context: ssl.SSLContext | None = None
        self._certificate = ""

    def make(self, body: Any) -> Guard | None:
        """Returns the guard that a message of the front describes; None: no TLS.

        Raises ValueError, ssl.SSLError, OSError.
        """
        if body is None:
            return None
        try:
            certificate, key, secret = str(body["certificate"]), str(body["key"]), bytes.fromhex(body["secret"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"the front's TLS message cannot be decoded: {error!r}") from None
        if len(secret) != hashlib.sha256().digest_size:
            raise ValueError(f"the hash of a ticket has {len(secret)} bytes")
        if self._context is None or self._certificate != certificate:
            self._context, self._certificate = _context(certificate, key), certificate
        return partial(_open, self._context, secret)


def _open(context: ssl.SSLContext, secret: bytes, end: socket.socket, deadline: float) -> ssl.SSLSocket:
    """Returns the same connection, inside TLS.

    Raises OSError, or FrameError if the client does not show the ticket.
    """
    end.settimeout(max(0.001, deadline - time.monotonic()))
    inside = context.wrap_socket(end, server_side=True, do_handshake_on_connect=False)
    inside.do_handshake()
    length, kind, _, _, _ = HEADER.unpack(receive_within(inside, HEADER.size, deadline))
    if kind != Kind.TICKET or length != TICKET_BYTES - TICKET_NAME:
        raise FrameError(f"a frame of kind {kind} with {length} bytes is not a ticket")
    shown = hashlib.sha256(receive_within(inside, length, deadline)).digest()
    if not hmac.compare_digest(shown, secret):
        raise FrameError("the second half of the ticket is wrong")
    return inside


def _context(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # no TLS session is resumed here
    file = os.memfd_create("stripe-certificate")  # OpenSSL loads only from files, and the key must not be on a disk
    try:
        os.write(file, f"{key}\n{certificate}\n".encode())
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context
