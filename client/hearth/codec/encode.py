"""Encoding of the messages that precede a first result, without protobuf.

The import of protobuf takes as long as everything else until the first result. Encoded by hand, the messages also take
less time than as objects, and large messages are copied only once. The encoding is that of protobuf
(https://protobuf.dev/programming-guides/encoding/); the tests compare it with the generated classes.
`hearth.codec.decode` decodes the answers.
"""

from __future__ import annotations

from collections.abc import Mapping

from hearth.codec.batch import number

_LONGEST = 2**64


class Plain:
    """A serialized message; of commands also the handle of the stream."""

    __slots__ = ("_data", "stream")

    def __init__(self, data: bytes, stream: int = 0) -> None:
        self._data = data
        self.stream = stream

    def SerializeToString(self) -> bytes:
        """Returns the serialized message, like the generated classes."""
        return self._data


# ---- fields ----


def _count(tag: int, value: int) -> bytes:
    """Encodes a number field, which takes no bytes for 0.

    Raises ValueError for a number that does not fit, as the generated classes do.
    """
    if not value:
        return b""
    if not 0 < value < _LONGEST:
        raise ValueError(f"value out of range: {value}")
    return number(tag) + number(value)


def _bytes(tag: int, *parts: bytes | memoryview) -> bytes:
    """Encodes a field of bytes, text or a message; its value is the concatenation of several parts."""
    return b"".join((number(tag), number(sum(map(len, parts))), *parts))


def encodable(text: str) -> bool:
    """Returns True if `text` can be encoded in UTF-8, as messages need: it has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(tag: int, value: str) -> bytes:
    """Encodes a field of `encodable` text; empty text takes no bytes."""
    return _bytes(tag, value.encode()) if value else b""


# ---- commands ----

# Handles, offsets and sizes are made by this package, and are between 0 and 2**63.


def _command(stream: int, tag: bytes, body: bytes) -> Plain:
    return Plain(b"".join((b"\x10", number(stream), tag, number(len(body)), body)), stream)


def allocate(stream: int, buffer: int, size: int) -> Plain:
    """Encodes a `Command.allocate` of one buffer.

    Args:
        stream: Handle of the stream.
        buffer: Handle of the new buffer.
        size: Size in bytes.

    Returns:
        The serialized command.
    """
    return _command(stream, b"\x22", b"".join((b"\x08", number(buffer), b"\x10", number(size))))


def free(buffers: list[int]) -> Plain:
    """Encodes a `Command.free` of several buffers."""
    return _command(0, b"\x2a", _bytes(0x0A, *map(number, buffers)))


def write(stream: int, buffer: int, offset: int, data: memoryview) -> Plain:
    """Encodes a `Command.write` of contiguous bytes, which are part of the command.

    Args:
        stream: Handle of the stream.
        buffer: Handle of the buffer.
        offset: Offset in the buffer in bytes.
        data: The bytes.

    Returns:
        The serialized command.
    """
    size = len(data)
    location = b"".join((b"\x08", number(buffer), b"\x10", number(offset), b"\x1a", number(size)))
    return Plain(b"".join((b"\x10", number(stream), b"\x32", number(len(location) + size), location, data)), stream)


def read(stream: int, buffer: int, offset: int, size: int) -> Plain:
    """Encodes a `Command.read` of contiguous bytes, which are returned in the answer.

    Args:
        stream: Handle of the stream.
        buffer: Handle of the buffer.
        offset: Offset in the buffer in bytes.
        size: Number of bytes.

    Returns:
        The serialized command.
    """
    location = b"".join((b"\x08", number(buffer), b"\x10", number(offset), b"\x18", number(size)))
    return _command(stream, b"\x3a", location)


def fill(stream: int, buffer: int, offset: int, size: int, pattern: bytes) -> Plain:
    """Encodes a `Command.fill`.

    Args:
        stream: Handle of the stream.
        buffer: Handle of the buffer.
        offset: Offset in the buffer in bytes.
        size: Number of bytes to fill.
        pattern: Bytes to repeat.

    Returns:
        The serialized command.
    """
    location = b"".join((b"\x08", number(buffer), b"\x10", number(offset), b"\x18", number(size)))
    return _command(stream, b"\x4a", b"".join((location, b"\x22", number(len(pattern)), pattern)))


def load_module(stream: int, module: int, load: bytes) -> Plain:
    """Encodes a `Command.load_module`.

    Args:
        stream: Handle of the stream.
        module: Handle of the new module.
        load: The serialized `LoadModule` without its handle.

    Returns:
        The serialized command.
    """
    return _command(stream, b"\x8a\x01", b"".join((b"\x08", number(module), load)))


def code(kind: int, data: bytes) -> bytes:
    """Encodes a `LoadModule` without handle, options, names and headers.

    Args:
        kind: `CUDA_CPP`, `PTX`, `CUBIN`, `FATBIN`, `LTO_IR` or `LIBRARY`.
        data: The code.

    Returns:
        The serialized message.
    """
    return _count(0x10, kind) + _bytes(0x1A, data)


def get_function(stream: int, function: int, module: int, name: str) -> Plain:
    """Encodes a `Command.get_function`.

    Args:
        stream: Handle of the stream.
        function: Handle of the new function.
        module: Handle of the module.
        name: Name of the kernel in the code.

    Returns:
        The serialized command.
    """
    body = b"".join((b"\x08", number(function), b"\x10", number(module), _text(0x1A, name)))
    return _command(stream, b"\x92\x01", body)


def unload_module(module: int) -> Plain:
    """Encodes a `Command.unload_module`."""
    return _command(0, b"\xa2\x01", _count(0x08, module))


CUDA_CPP, PTX, CUBIN, FATBIN, LTO_IR, LIBRARY = 1, 2, 3, 4, 5, 6
"""Values of `CodeKind` on the wire."""

SYNC = b"\xc2\x01\x00"
"""A serialized `Command.sync` that waits for the default stream."""
SYNC_ALL = b"\xc2\x01\x02\x08\x01"
"""A serialized `Command.sync` that waits for all streams."""


# ---- the session ----

ISOLATION = {None: 0, False: 1, True: 2}
"""Values of `Isolation` by a session's request for dedicated processes; None: not specified."""


def open_session(
    protocol: tuple[int, int], version: str, name: str, isolation: int, launch_timeout_ns: int, process: str = ""
) -> Plain:
    """Encodes an `OpenSessionRequest`.

    Args:
        protocol: Oldest and newest protocol version that the client supports.
        version: Version of the client.
        name: Name of the session in the daemon's logs.
        isolation: A value of `ISOLATION`.
        launch_timeout_ns: Time limit of launches in nanoseconds; 0: the daemon's default.
        process: Host and pid of the client, ``host:pid``.

    Returns:
        The serialized request.
    """
    versions = _bytes(0x0A, _count(0x08, protocol[0]), _count(0x10, protocol[1]))
    client = _text(0x12, version) + _text(0x1A, name)
    return Plain(versions + client + _count(0x20, isolation) + _count(0x28, launch_timeout_ns) + _text(0x32, process))


def of_token(token: str) -> Plain:
    """Encodes a `CloseSessionRequest` or a `RenewSessionRequest`, which both consist of the session's token."""
    return Plain(_text(0x0A, token))


def attach(token: str, device: int, acked: int, *, resume: bool, generation: int, received: int) -> bytes:
    """Encodes an `ExecuteRequest.attach` of a resumable attachment.

    Args:
        token: Token of the session.
        device: Ordinal of the device.
        acked: Sequence number of the last batch that was acknowledged.
        resume: True to resume an earlier attachment.
        generation: Generation of the earlier attachment.
        received: Number of responses received on the earlier attachment.

    Returns:
        The serialized request.
    """
    head = _text(0x0A, token), _count(0x10, device), _count(0x18, acked), _count(0x20, 1)
    return _bytes(0x0A, *head, _count(0x28, resume), _count(0x30, generation), _count(0x38, received))


def received(responses: int, transfers: Mapping[int, int]) -> bytes:
    """Encodes an `ExecuteRequest.received`.

    Args:
        responses: Number of responses received.
        transfers: Bytes received of each transfer, by its number.

    Returns:
        The serialized request.
    """
    received_transfers = [
        _bytes(0x12, _count(0x08, transfer), _count(0x10, size)) for transfer, size in transfers.items()
    ]
    return _bytes(0x1A, _count(0x08, responses), *received_transfers)
