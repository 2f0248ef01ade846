"""Unauthenticated clients of the HTTP listener: oversized heads, pipelines whose answers are not read, bodies, garbage,
silence."""

from __future__ import annotations

import contextlib
import functools
import gzip
import os
import socket
import threading
from collections.abc import Callable

from tests.attacks.rows import Budget, Row
from tests.attacks.target import Target, Until, connect

CONNECTIONS = 16
CHUNK = 64 << 10


def _each(target: Target, seconds: float, attack: Callable[[socket.socket, Until], int]) -> dict[str, int]:
    """Runs `attack` on one connection after another, several at a time; returns the sum of its results."""
    until = Until(seconds)
    sent, opened, lock = [0], [0], threading.Lock()

    def work() -> None:
        while until:
            count = 0
            with contextlib.suppress(OSError), connect(target.http) as connection:
                connection.settimeout(1.0)
                count = attack(connection, until)
            with lock:
                sent[0] += count
                opened[0] += 1

    threads = [threading.Thread(target=work) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"connections": opened[0], "sent": sent[0]}


def _send(connection: socket.socket, until: Until, data: bytes, most: int = 200 << 20) -> int:
    """Sends the data repeatedly until the daemon closes the connection or `most` bytes are sent; returns the number of
    bytes."""
    sent = 0
    with contextlib.suppress(OSError):
        while until and sent < most:
            sent += connection.send(data)
    return sent


def headers(target: Target, seconds: float) -> dict[str, int]:
    """Sends 200 MiB of header fields in one request."""
    field = b"X-%d: " + b"a" * 4000 + b"\r\n"

    def attack(connection: socket.socket, until: Until) -> int:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        return _send(connection, until, field * 16)

    return _each(target, seconds, attack)


def one_header(target: Target, seconds: float) -> dict[str, int]:
    """Sends a single header field without end."""

    def attack(connection: socket.socket, until: Until) -> int:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ")
        return _send(connection, until, b"a" * CHUNK)

    return _each(target, seconds, attack)


def pipeline(target: Target, seconds: float) -> dict[str, int]:
    """Sends requests one after another without reading the answers."""
    request = b"GET /page/page.js HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def attack(connection: socket.socket, until: Until) -> int:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        return _send(connection, until, request * 1000)

    return _each(target, seconds, attack)


def pipeline_in_steps(target: Target, seconds: float) -> dict[str, int]:
    """Pipelines requests in small portions, without reading the answers."""
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def attack(connection: socket.socket, until: Until) -> int:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        return _send(connection, until, request * 16, 16 << 20)

    return _each(target, seconds, attack)


@functools.cache
def _bomb() -> bytes:
    return gzip.compress(bytes(64 << 20), 9)


def bodies(target: Target, seconds: float) -> dict[str, int]:
    """Sends compressed bodies to a path that needs no credential: a mebibyte sent would be a gibibyte inflated."""
    bomb = _bomb()
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\n"

    def attack(connection: socket.socket, until: Until) -> int:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % (len(bomb) * 1000))
        return _send(connection, until, bomb)

    return _each(target, seconds, attack)


def chunked(target: Target, seconds: float) -> dict[str, int]:
    """Sends bodies of unknown length."""
    chunk = b"%x\r\n" % CHUNK + bytes(CHUNK) + b"\r\n"

    def attack(connection: socket.socket, until: Until) -> int:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        return _send(connection, until, chunk)

    return _each(target, seconds, attack)


def garbage(target: Target, seconds: float) -> dict[str, int]:
    """Sends random bytes."""
    return _each(target, seconds, lambda connection, until: _send(connection, until, os.urandom(CHUNK)))


def silence(target: Target, seconds: float) -> dict[str, int]:
    """Holds 500 connections: half send nothing, half send single bytes."""
    until = Until(seconds)
    with contextlib.ExitStack() as stack:
        held = []
        while until:
            while len(held) < 500 and until:
                with contextlib.suppress(OSError):
                    held.append(stack.enter_context(connect(target.http)))
            for connection in held[::2]:
                with contextlib.suppress(OSError):
                    connection.send(b"G")
            threading.Event().wait(min(0.2, until.left))
        return {"connections": len(held)}


def tokens(target: Target, seconds: float) -> dict[str, int]:
    """Sends wrong tokens at line rate."""
    request = b"GET /status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer hearth_wrong\r\n\r\n"

    def attack(connection: socket.socket, until: Until) -> int:
        answers = 0
        while until:
            connection.sendall(request)
            if not connection.recv(CHUNK):
                break
            answers += 1
        return answers

    return _each(target, seconds, attack)


FLOOD = Budget(slower=5.0)
"""Budget of clients that reconnect immediately after a refusal, at line rate."""
ROWS = (
    Row("http headers", headers, FLOOD),
    Row("http endless header", one_header, FLOOD),
    Row("http pipeline", pipeline, FLOOD),
    Row("http pipeline in steps", pipeline_in_steps, FLOOD),
    Row("http zip bomb", bodies, FLOOD, prepare=_bomb),
    Row("http chunked", chunked, FLOOD),
    Row("http garbage", garbage, FLOOD),
    Row("http silence", silence),
    Row("http wrong tokens", tokens, FLOOD),
)
