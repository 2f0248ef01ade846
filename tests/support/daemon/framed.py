"""Framed calls on the call socket, for requests that the client library would not send."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from hearth.transport import framed_call as call_module
from hearth_proto import calls, frames
from hearth_proto.frames import Frame, FrameReader, Kind
from tests.support.daemon.harness import DaemonProcess

_WAIT = 30.0
"""Timeout of a read in seconds."""


def call_path(daemon: DaemonProcess) -> str:
    return calls.socket_path(daemon.unix.removeprefix("unix:"))


@contextlib.contextmanager
def connected(daemon: DaemonProcess) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_WAIT)
        connection.connect(call_path(daemon))
        yield connection


def method(path: str, metadata: tuple[tuple[str, str], ...] = ()) -> bytes:
    """Returns the first frame of a call."""
    return frames.encode(Kind.METHOD, calls.pack_head(path, metadata))


def received(connection: socket.socket) -> list[Frame]:
    """Returns all frames until the connection ends."""
    reader, received_frames = FrameReader(), []
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(1 << 16):
            received_frames += reader.feed(data)
    return received_frames


def reason(connection: socket.socket) -> str:
    """Returns the reason of the refusal in the last frame of the answer."""
    end = received(connection)[-1]
    assert end.kind == Kind.END and end.payload
    return str(call_module.refusal_of(end.payload).reason)
