"""The messages that a first result takes, written without protobuf, whose import takes as long as all else up to it.

Written so, they take less time than as objects, too, and large ones are copied once. The encoding is protobuf's own
(https://protobuf.dev/programming-guides/encoding/); the tests compare it with the generated classes.
`hearth.codec.decode` reads what comes back.
"""

from __future__ import annotations

from collections.abc import Mapping

from hearth.codec.batch import number

_LONGEST = 2**64


class Plain:
    """A message that is serialized; of commands also the stream that it is for."""

    __slots__ = ("_data", "stream")

    def __init__(self, data: bytes, stream: int = 0) -> None:
        self._data = data
        self.stream = stream

    def SerializeToString(self) -> bytes:
        """Returns the serialized message, like the generated classes."""
        return self._data


# ---- fields ----


def _count(tag: int, value: int) -> bytes:
    """A number, which is left out where it is 0. Raises ValueError, as the generated classes do, for one that no field
    holds."""
    if not value:
        return b""
    if not 0 < value < _LONGEST:
        raise ValueError(f"value out of range: {value}")
    return number(tag) + number(value)


def _bytes(tag: int, *parts: bytes | memoryview) -> bytes:
    """Bytes, text or a message, made of parts."""
    return b"".join((number(tag), number(sum(map(len, parts))), *parts))


def encodable(text: str) -> bool:
    """True if UTF-8, the encoding of text in messages, can hold `text`: it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(tag: int, value: str) -> bytes:
    """Encodes a field of `encodable` text; empty text takes no bytes."""
    return _bytes(tag, value.encode()) if value else b""


# ---- commands ----

# Handles, offsets and sizes are of this package's own making, and between 0 and 2**63.


def _command(stream: int, tag: bytes, body: bytes) -> Plain:
    return Plain(b"".join((b"\x10", number(stream), tag, number(len(body)), body)), stream)


def allocate(stream: int, buffer: int, size: int) -> Plain:
    """`Command.allocate` of one buffer."""
    return _command(stream, b"\x22", b"".join((b"\x08", number(buffer), b"\x10", number(size))))


def free(buffers: list[int]) -> Plain:
    """`Command.free`."""
    return _command(0, b"\x2a", _bytes(0x0A, *map(number, buffers)))


def write(stream: int, buffer: int, offset: int, data: memoryview) -> Plain:
    """`Command.write` of contiguous bytes that are in it."""
    size = len(data)
    place = b"".join((b"\x08", number(buffer), b"\x10", number(offset), b"\x1a", number(size)))
    return Plain(b"".join((b"\x10", number(stream), b"\x32", number(len(place) + size), place, data)), stream)


def read(stream: int, buffer: int, offset: int, size: int) -> Plain:
    """`Command.read` of contiguous bytes that come with the answer."""
    place = b"".join((b"\x08", number(buffer), b"\x10", number(offset), b"\x18", number(size)))
    return _command(stream, b"\x3a", place)


def fill(stream: int, buffer: int, offset: int, size: int, pattern: bytes) -> Plain:
    """`Command.fill`."""
    place = b"".join((b"\x08", number(buffer), b"\x10", number(offset), b"\x18", number(size)))
    return _command(stream, b"\x4a", b"".join((place, b"\x22", number(len(pattern)), pattern)))


def load_module(stream: int, module: int, load: bytes) -> Plain:
    """`Command.load_module`, where `load` is the serialized rest of it."""
    return _command(stream, b"\x8a\x01", b"".join((b"\x08", number(module), load)))


def code(kind: int, data: bytes) -> bytes:
    """A `LoadModule` without a handle, options, names and headers."""
    return _count(0x10, kind) + _bytes(0x1A, data)


def get_function(stream: int, function: int, module: int, name: str) -> Plain:
    """`Command.get_function`."""
    body = b"".join((b"\x08", number(function), b"\x10", number(module), _text(0x1A, name)))
    return _command(stream, b"\x92\x01", body)


def unload_module(module: int) -> Plain:
    """`Command.unload_module`."""
    return _command(0, b"\xa2\x01", _count(0x08, module))


CUDA_CPP, PTX, CUBIN, FATBIN = 1, 2, 3, 4
"""`CodeKind`."""

SYNC = b"\xc2\x01\x00"
"""A serialized `Command.sync`: of the default stream,"""
SYNC_ALL = b"\xc2\x01\x02\x08\x01"
"""and of all."""


# ---- the session ----

ISOLATION = {None: 0, False: 1, True: 2}
"""`Isolation`, by a session's request for dedicated processes; None: not specified."""


def open_session(protocol: tuple[int, int], version: str, name: str, isolation: int, launch_timeout_ns: int) -> Plain:
    """`OpenSessionRequest`."""
    versions = _bytes(0x0A, _count(0x08, protocol[0]), _count(0x10, protocol[1]))
    who = _text(0x12, version) + _text(0x1A, name)
    return Plain(versions + who + _count(0x20, isolation) + _count(0x28, launch_timeout_ns))


def of_token(token: str) -> Plain:
    """`CloseSessionRequest` and `RenewSessionRequest`."""
    return Plain(_text(0x0A, token))


def attach(token: str, device: int, acked: int, *, resume: bool, generation: int, received: int) -> bytes:
    """A serialized `ExecuteRequest.attach`, resumable."""
    head = _text(0x0A, token), _count(0x10, device), _count(0x18, acked), _count(0x20, 1)
    return _bytes(0x0A, *head, _count(0x28, resume), _count(0x30, generation), _count(0x38, received))


def received(responses: int, transfers: Mapping[int, int]) -> bytes:
    """A serialized `ExecuteRequest.received`; `transfers`: bytes that have come of each."""
    told = [_bytes(0x12, _count(0x08, transfer), _count(0x10, size)) for transfer, size in transfers.items()]
    return _bytes(0x1A, _count(0x08, responses), *told)
