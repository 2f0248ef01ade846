"""Frames between the fronts of a group: four bytes of length, then one JSON object in UTF-8. Pure.

The messages between fronts are small and infrequent (bulk data goes over NCCL), so that a readable format is fast
enough. Every message of a peer is validated before it is used.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, NoReturn

HEADER = struct.Struct(">I")
MAX_FRAME = 1 << 20
"""Maximum size of one object in bytes; a larger object ends the link. The signatures of several thousand operations
fit."""
MAX_HELLO = 64 << 10
"""Maximum size, in bytes, of an object from an unauthenticated peer."""

Body = dict[str, Any]


class PeerFrameError(ValueError):
    """The bytes are not a valid frame, or the object does not fit into a frame."""


def encode(body: Mapping[str, Any], max_bytes: int = MAX_FRAME) -> bytes:
    """Encodes a frame. Raises `PeerFrameError` if the object is too large."""
    payload = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    if len(payload) > max_bytes:
        raise PeerFrameError(f"a message of {len(payload)} bytes does not fit a frame; the maximum is {max_bytes}")
    return HEADER.pack(len(payload)) + payload


class PeerFrameReader:
    """Decodes a byte stream, in pieces of any size, into objects."""

    def __init__(self, max_bytes: int = MAX_FRAME) -> None:
        self.max_bytes = max_bytes
        """Maximum size, in bytes, of frames that begin from now on."""
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Body]:
        """Returns the objects that `data` completes, in order.

        Raises `PeerFrameError`; the stream cannot be read afterwards.
        """
        self._buffer += data
        bodies: list[Body] = []
        position = 0
        while len(self._buffer) - position >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer, position)
            if length > self.max_bytes:
                raise PeerFrameError(f"a message of {length} bytes is announced; the maximum is {self.max_bytes}")
            begin, end = position + HEADER.size, position + HEADER.size + length
            if len(self._buffer) < end:
                break
            bodies.append(_decode_object(bytes(self._buffer[begin:end])))
            position = end
        del self._buffer[:position]
        return bodies


def _decode_object(payload: bytes) -> Body:
    try:
        body = json.loads(payload.decode(), parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise PeerFrameError(f"a message is not valid JSON: {str(error)[:100]}") from None
    if not isinstance(body, dict):
        raise PeerFrameError(f"a message is a JSON {type(body).__name__}, not an object")
    return body


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
