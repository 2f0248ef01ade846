"""Counts the fields of a serialized protobuf message without decoding it.

A field of two bytes can decode to an object of a hundred bytes. The size of a message therefore does not limit the
memory of the decoded message, but the number of its fields does. Pure. Reads no more of the message than is needed to
reach the limit.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from hearth_proto.chunks import read_varint

_VARINT, _FIXED64, _BYTES, _START, _END, _FIXED32 = range(6)
_MAX_DEPTH = 64
"""Maximum depth of nested messages that are examined; protobuf itself refuses more than 100."""


def exceeds(data: bytes, descriptor: Any, limit: int) -> bool:
    """Returns True if a message of type `descriptor` has more than `limit` fields, including those of nested messages.

    Bytes that are not a valid message are left to the decoder.
    """
    if len(data) <= 2 * limit:  # the shortest field has two bytes
        return False
    try:
        return _count(data, 0, len(data), descriptor, limit, 0) < 0
    except ValueError:  # the data ends inside a number, where the decoder stops as well
        return False


def _count(data: bytes, position: int, end: int, descriptor: Any, remaining: int, depth: int) -> int:
    """Returns the number of fields that are left of the limit after those between `position` and `end`.

    Negative: too many. Raises ValueError if the data ends inside a number.
    """
    nested = _nested(descriptor) if descriptor is not None and depth < _MAX_DEPTH else {}
    while position < end:
        remaining -= 1
        if remaining < 0:
            return remaining
        tag, position = read_varint(data, position)
        kind = tag & 7
        if kind == _VARINT:
            _, position = read_varint(data, position)
        elif kind == _BYTES:
            length, position = read_varint(data, position)
            if length > end - position:
                return remaining  # truncated; the decoder reports it
            inner = nested.get(tag >> 3)
            if inner is not None and length:
                remaining = _count(data, position, position + length, inner, remaining, depth + 1)
                if remaining < 0:
                    return remaining
            position += length
        elif kind == _FIXED64:
            position += 8
        elif kind == _FIXED32:
            position += 4
        elif kind not in (_START, _END):
            return remaining
    return remaining


@cache
def _nested(descriptor: Any) -> dict[int, Any]:
    """Returns the types of nested messages, by field number."""
    return {field.number: field.message_type for field in descriptor.fields if field.message_type is not None}
