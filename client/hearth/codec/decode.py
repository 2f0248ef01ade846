"""Decoding of the answers that precede a first result, without protobuf: see `hearth.codec.encode`.

Messages that are not of the simplest form, such as errors, are left to the generated classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from hearth_proto import later
from hearth_proto.chunks import read_varint

if TYPE_CHECKING:
    from hearth_proto.v1 import commands_pb2

_LONGEST = 2**64


class PartlyRead:
    """A message of which some fields have been decoded.

    An access to another field decodes the whole message with protobuf.
    """

    def __init__(self, kind: tuple[Any, str], data: bytes | memoryview, fields: dict[str, Any]) -> None:
        """`kind` is the module and the name of the message's class; `fields` are the decoded fields."""
        self._kind = kind
        self._data = data
        self._message: Any = None
        self.__dict__.update(fields)

    if TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name[:1] == "_":  # no message has such a field
            raise AttributeError(name)
        if self._message is None:
            module, kind = self._kind
            self._message = getattr(module, kind).FromString(bytes(self._data))
        return getattr(self._message, name)


_LIMITS = {
    0x08: "max_inline_bytes",
    0x10: "max_chunk_bytes",
    0x18: "max_batch_bytes",
    0x20: "max_batches_in_flight",
    0x28: "max_code_bytes",
}
_ATTACHED = {
    0x08: "generation",
    0x10: "last_seq",
    0x18: "max_batch_bytes",
    0x20: "max_batches_in_flight",
    0x28: "resumed",
    0x38: "max_unacked_bytes",
    0x42: "lane",
}
_OFFER = {0x0A: "path", 0x12: "ticket", 0x18: "valid_ns"}
_OPENED = {0x0A: "session_id", 0x12: "session_token", 0x28: "lease_ns", 0x32: "limits"}
_OPENED_DEVICE = 0x3A
_OPENED_FEATURE = 0x42
_DURABLE = 6  # of Attached, repeated
_RESULT = 0x1A  # ExecuteResponse.result

DONE = cast("commands_pb2.Result", PartlyRead((later.commands_pb2, "Result"), b"\x1a\x00", {}))
"""A `Result` whose field `done` is set."""


def _fields(message: bytes | memoryview) -> Iterator[tuple[int, Any]]:
    """Yields the tag of each field with its number, or with a view of its bytes.

    Raises ValueError for other kinds of field, and for bytes that are not a message.
    """
    view, at = memoryview(message), 0
    while at < len(view):
        tag, at = read_varint(view, at)
        kind = tag & 7
        if kind not in (0, 2):
            raise ValueError(f"field {tag >> 3} has the invalid wire type {kind}")
        value, at = read_varint(view, at)
        if value >= _LONGEST:
            raise ValueError(f"field {tag >> 3} has more than 64 bits")
        if kind == 0:
            yield tag, value
            continue
        if at + value > len(view):
            raise ValueError(f"field {tag >> 3} extends past the end of the message")
        yield tag, view[at : at + value]
        at += value


def _read_named_fields(kind: tuple[Any, str], data: bytes | memoryview, names: dict[int, str]) -> PartlyRead:
    """Decodes the fields whose tags are in `names`. Raises ValueError for bytes that are not a message."""
    fields: dict[str, Any] = {name: b"" if tag & 7 else 0 for tag, name in names.items()}
    for tag, value in _fields(data):
        name = names.get(tag)
        if name is not None:
            fields[name] = value
    return PartlyRead(kind, data, fields)


class Opened:
    """Decoder of an `OpenSessionResponse`: decodes by hand the fields that a session needs immediately."""

    @staticmethod
    def FromString(data: bytes) -> Any:
        """Returns the decoded response. Raises `DecodeError` for bytes that are not such a response."""
        try:
            opened = _read_named_fields((later.node_pb2, "OpenSessionResponse"), data, _OPENED)
            opened.session_id = str(opened.session_id, "utf-8")
            opened.session_token = str(opened.session_token, "utf-8")
            opened.limits = _read_named_fields((later.node_pb2, "SessionLimits"), opened.limits, _LIMITS)
            opened.features = [str(value, "utf-8") for tag, value in _fields(data) if tag == _OPENED_FEATURE]
            kind = later.node_pb2, "Device"
            opened.devices = [
                _read_named_fields(kind, value, {0x08: "ordinal"})
                for tag, value in _fields(data)
                if tag == _OPENED_DEVICE
            ]
            return opened
        except ValueError:
            return later.node_pb2.OpenSessionResponse.FromString(data)


class Unread:
    """Response type of an answer whose content is not used."""

    @staticmethod
    def FromString(data: bytes) -> bytes:
        """Returns the bytes unparsed."""
        return data


class _AttachedResponse:
    """An `ExecuteResponse` whose field `attached` is set."""

    __slots__ = ("attached",)

    def __init__(self, attached: PartlyRead) -> None:
        self.attached = attached

    def WhichOneof(self, _: str) -> str:
        """Returns the set field, like the generated class.

        Args:
            _: Name of the group of fields; there is only one.
        """
        return "attached"


def response(data: bytes) -> Any:
    """Decodes an `ExecuteResponse` of an Execute stream.

    Raises `DecodeError` for bytes that are not such a response.
    """
    try:
        ((tag, body),) = _fields(data)
        if tag == 0x0A and not any(field_tag >> 3 == _DURABLE for field_tag, _ in _fields(body)):
            attached = _read_named_fields((later.device_pb2, "Attached"), body, _ATTACHED)
            attached.durable, attached.resumed = [], bool(attached.resumed)
            attached.lane = offer = _read_named_fields((later.device_pb2, "LaneOffer"), attached.lane, _OFFER)
            offer.path, offer.ticket = str(offer.path, "utf-8"), bytes(offer.ticket)
            return _AttachedResponse(attached)
    except ValueError:
        pass
    return later.device_pb2.ExecuteResponse.FromString(data)


class ReadAnswer:
    """A `Result` with the bytes of a `Read`, as a view of the received message."""

    __slots__ = ("data", "request", "size")

    def __init__(self, request: int, data: memoryview, size: int) -> None:
        self.request = request
        self.data = data
        self.size = size

    @property
    def read(self) -> ReadAnswer:
        """The answer itself, which also serves as its `ReadResult`."""
        return self

    def WhichOneof(self, _: str) -> str:
        """Returns the set field, like the generated class.

        Args:
            _: Name of the group of fields; there is only one.
        """
        return "read"

    def HasField(self, _: str) -> bool:
        """Returns False: the answer has no error.

        Args:
            _: Name of the field.
        """
        return False


def read_answer(data: bytes) -> commands_pb2.Result | None:
    """Decodes an `ExecuteResponse` that answers a read with its bytes; returns None for every other response."""
    total = len(data)
    if not total or data[0] != _RESULT:
        return None
    try:
        result, begin = _number(data, 1)
        request, at = _numbered(data, begin, 0x08)
        answer, inner = _numbered(data, at, 0x22)
        length, at = _numbered(data, inner, 0x0A)
        end = at + length
        size, last = (0, end) if end == total else _numbered(data, end, 0x10)
    except (IndexError, ValueError):  # the message is truncated, or has other fields
        return None
    if result != total - begin or answer != total - inner or last != total:
        return None
    return cast("commands_pb2.Result", ReadAnswer(request, memoryview(data)[at:end], size))


def _numbered(data: bytes, at: int, tag: int) -> tuple[int, int]:
    """Returns the number after `tag`, and the index after the number. Raises ValueError if another tag is there."""
    if data[at] != tag:
        raise ValueError(tag)
    return _number(data, at + 1)


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Decodes a varint like `read_varint`. Raises IndexError if the bytes end inside it."""
    value = data[at]
    if value < 0x80:
        return value, at + 1
    second = data[at + 1]
    return (value & 0x7F | second << 7, at + 2) if second < 0x80 else read_varint(memoryview(data), at)
