"""Open files passed between processes: one JSON message with its file descriptors, over a packet socket.

Used next to a link whose byte stream cannot carry descriptors. The sender keeps its own copies; the receiver owns the
received descriptors.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

MAX_MESSAGE = 64 << 10
MAX_DESCRIPTORS = 64
"""Maximum number of descriptors per message. The limit of the system is 253 (SCM_MAX_FD)."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Returns two connected sockets. Packets keep their boundaries, so that descriptors stay with their message."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(end: socket.socket, body: dict[str, Any], files: Sequence[int]) -> None:
    """Sends one message with the descriptors `files`.

    Raises `OSError` (`BlockingIOError` if a non-blocking socket is full), or `ValueError` if the message is too large.
    """
    message = json.dumps(body, separators=(",", ":")).encode()
    if len(message) > MAX_MESSAGE or len(files) > MAX_DESCRIPTORS:
        raise ValueError(
            f"a message of {len(message)} bytes with {len(files)} descriptors does not fit into one packet"
        )
    socket.send_fds(end, [message], files)


def receive(end: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Returns the next message and its descriptors, which are close-on-exec; None at the end of the stream.

    Raises `BlockingIOError` if no message is available, or `ValueError` for an invalid message; neither leaves a
    descriptor open.
    """
    message, files, flags, _ = socket.recv_fds(end, MAX_MESSAGE, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    try:
        if not message and not files:
            return None
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ValueError("a message was truncated")
        body = json.loads(message)
        if not isinstance(body, dict):
            raise ValueError("a message is not a JSON object")
    except ValueError:
        for file in files:
            with contextlib.suppress(OSError):
                os.close(file)
        raise
    return body, files
