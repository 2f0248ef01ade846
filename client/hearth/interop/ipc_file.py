"""Reception of an open file from the daemon: the memory of an exported array."""

from __future__ import annotations

import contextlib
import os
import socket
import time

from hearth.errors import ConnectError, UnsupportedError
from hearth_proto import frames
from hearth_proto.frames import FrameError, FrameReader, Kind

WAIT_S = 5.0
"""Seconds that the daemon may take to send the file; the ticket is invalid afterwards."""


def fetch(path: str, ticket: bytes, seconds: float = WAIT_S) -> int:
    """Presents a ticket at the daemon's Unix socket and receives the file. Blocks.

    Args:
        path: Path of the socket.
        ticket: The ticket, valid once.
        seconds: Seconds to wait at most.

    Returns:
        The file's descriptor, which is close-on-exec and which the caller closes.

    Raises:
        UnsupportedError: This process cannot reach the socket.
        ConnectError: The daemon has not sent the file in time, or has sent an invalid answer.
    """
    deadline = time.monotonic() + seconds
    files: list[int] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(seconds)
            connection.connect(path)
        except (OSError, ValueError) as error:
            raise UnsupportedError(
                f"the daemon's socket {path} cannot be reached from here: {error}.",
                fix="mount the directory that contains both of the daemon's sockets into this container, or "
                "copy with x.get().",
            ) from error
        try:
            connection.sendall(frames.encode(Kind.TICKET, ticket))
            reader = FrameReader()
            received: list[frames.Frame] = []
            while not received:
                connection.settimeout(max(1e-3, deadline - time.monotonic()))
                data, new_files, _, _ = socket.recv_fds(connection, 4096, 4, socket.MSG_CMSG_CLOEXEC)
                files += new_files
                if not data:
                    raise ConnectionError("the daemon closed the connection")
                received = reader.feed(data)
            if received[0].kind != Kind.LIVE or len(files) != 1:
                raise FrameError(f"a frame of kind {received[0].kind} arrived with {len(files)} files")
        except (OSError, FrameError) as error:
            _close(files)
            raise ConnectError(
                f"the daemon did not hand over the memory of an exported array ({error}).",
                reason="UNAVAILABLE",
                fix="try again.",
            ) from error
        except BaseException:
            _close(files)
            raise
    return files[0]


def _close(files: list[int]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            os.close(file)
