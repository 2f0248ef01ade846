"""Calls as frames: gRPC's methods over a separate Unix socket, for clients that would rather not load gRPC.

One connection is one call. The client sends METHOD (what it calls, and the metadata that it shows), then its messages,
then END; the daemon sends its messages, then END with the Status of a call that failed. A client that closes the
connection before that has cancelled the call. Either side may ask with PING whether the other is there, and is answered
by PONG; a daemon that takes no more messages just now, and so would not read what is asked, says PONG by itself.

The socket is beside gRPC's, see `socket_path`; the methods, messages and metadata are gRPC's.
"""

from __future__ import annotations

from collections.abc import Iterable

from hearth_proto.frames import FrameError

Metadata = tuple[tuple[str, str], ...]

MAX_MESSAGE = 32 << 20
"""Bytes of one message; gRPC's limit is the same."""
MAX_HEAD = 16 << 10
"""Bytes of METHOD's payload, as of gRPC's metadata."""


class Keepalive:
    """Time limits by which a side notices that the other is gone, in seconds."""

    def __init__(self, ask: float = 20.0, answer: float = 10.0) -> None:
        self.ask = ask
        """Time of silence after which a side asks whether the other is alive; not before something was sent."""
        self.answer = answer
        """Timeout of the answer to that."""


KEEPALIVE = Keepalive()
"""The default of both sides."""


def socket_path(path: str) -> str:
    """Returns the path of the socket for calls: ``hearth.sock.call`` beside ``hearth.sock``."""
    return f"{path}.call"


def pack_head(method: str, metadata: Iterable[tuple[str, str]]) -> bytes:
    """METHOD's payload. Raises `FrameError` for a name or value with a NUL in it, and for one that is too long."""
    parts = [method]
    for name, value in metadata:
        parts += (name, value)
    try:
        head = "\0".join(parts).encode()
    except UnicodeEncodeError as error:
        raise FrameError(f"the head of a call is no text: {error}") from None
    if head.count(0) != len(parts) - 1:
        raise FrameError("the head of a call holds a NUL")
    if len(head) > MAX_HEAD:
        raise FrameError(f"the head of a call has {len(head)} bytes; the most is {MAX_HEAD}")
    return head


def unpack_head(head: bytes) -> tuple[str, Metadata]:
    """The method, ``/hearth.v1.NodeService/OpenSession``, and the metadata. Raises `FrameError`."""
    if len(head) > MAX_HEAD:
        raise FrameError(f"the head of a call has {len(head)} bytes; the most is {MAX_HEAD}")
    try:
        method, *rest = head.decode().split("\0")
    except UnicodeDecodeError as error:
        raise FrameError(f"the head of a call is no text: {error}") from None
    if len(rest) % 2 or not method.startswith("/"):
        raise FrameError("the head of a call is a method and pairs of names and values")
    return method, tuple(zip(rest[::2], rest[1::2], strict=True))
