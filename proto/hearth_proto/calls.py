"""Calls as frames: gRPC's methods over a separate Unix socket, for clients that do not load gRPC.

One connection carries one call. The client sends METHOD (the name of the method, and the metadata), then its messages,
then END. The daemon sends its messages, then END, with the Status of a call that failed. A client cancels the call by
closing the connection earlier. Either side may send PING, which the other side answers with PONG. While a daemon
accepts no further messages, and so would not read a PING, it sends PONG without a PING.

The socket is next to gRPC's, see `socket_path`; methods, messages and metadata are those of gRPC.
"""

from __future__ import annotations

from collections.abc import Iterable

from hearth_proto.frames import FrameError

Metadata = tuple[tuple[str, str], ...]

MAX_MESSAGE = 32 << 20
"""Maximum size of one message, in bytes; equal to gRPC's limit."""
MAX_HEAD = 16 << 10
"""Maximum size of METHOD's payload, in bytes, like that of gRPC's metadata."""


class Keepalive:
    """Time limits, in seconds, after which a side regards the other side as disconnected."""

    def __init__(self, ask: float = 20.0, answer: float = 10.0) -> None:
        self.ask = ask
        """Time of silence after which a side sends PING, but not before it has sent another frame."""
        self.answer = answer
        """Timeout of the answer to a PING."""


KEEPALIVE = Keepalive()
"""The default of both sides."""


def socket_path(path: str) -> str:
    """Returns the path of the socket for calls: ``hearth.sock.call`` next to ``hearth.sock``."""
    return f"{path}.call"


def pack_head(method: str, metadata: Iterable[tuple[str, str]]) -> bytes:
    """Returns METHOD's payload.

    Raises `FrameError` for a name or value that contains a NUL, or if the payload is too long.
    """
    parts = [method]
    for name, value in metadata:
        parts += (name, value)
    try:
        head = "\0".join(parts).encode()
    except UnicodeEncodeError as error:
        raise FrameError(f"the head of a call is not valid text: {error}") from None
    if head.count(0) != len(parts) - 1:
        raise FrameError("the head of a call contains a NUL character")
    if len(head) > MAX_HEAD:
        raise FrameError(f"the head of a call has {len(head)} bytes; the maximum is {MAX_HEAD}")
    return head


def unpack_head(head: bytes) -> tuple[str, Metadata]:
    """Returns the method, such as ``/hearth.v1.NodeService/OpenSession``, and the metadata. Raises `FrameError`."""
    if len(head) > MAX_HEAD:
        raise FrameError(f"the head of a call has {len(head)} bytes; the maximum is {MAX_HEAD}")
    try:
        method, *pairs = head.decode().split("\0")
    except UnicodeDecodeError as error:
        raise FrameError(f"the head of a call is not valid text: {error}") from None
    if len(pairs) % 2 or not method.startswith("/"):
        raise FrameError("the head of a call must be a method followed by pairs of names and values")
    return method, tuple(zip(pairs[::2], pairs[1::2], strict=True))
