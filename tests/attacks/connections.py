"""Unauthenticated clients that hold connections: slowloris and idle ones on every listener, with many and with few
descriptors."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time

from tests.attacks.rows import Budget, Row
from tests.attacks.target import Target, Until, connect

_STEP = 0.25
"""Seconds between two bytes of a slowloris."""
_PROBE = "import sys, urllib.request as u; u.build_opener(u.ProxyHandler({})).open(sys.argv[1], timeout=5).read()"


def idle(target: Target, seconds: float) -> dict[str, int]:
    """Opens connections to every listener as fast as they are accepted, and sends nothing."""
    until, held, opened, refused = Until(seconds), [], 0, 0
    addresses = list(target.listeners().values())
    while until and len(held) < 2000:
        for address in addresses:
            connection = _open(address)
            if connection is None:
                refused += 1
            else:
                held.append(connection)
                opened += 1
        time.sleep(0.001)
    until.wait()
    return {"opened": opened, "not taken": refused, "closed by the daemon": sum(map(_over, held))}


def slowloris(target: Target, seconds: float) -> dict[str, int]:
    """Opens 500 connections that start like a client's, and then sends single bytes from time to time."""
    begin = {
        target.grpc: b"PRI * HTTP/2.0\r\n\r\nSM\r\n",
        target.http: b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ",
    }
    until, held = Until(seconds), []
    addresses = list(target.listeners().values())
    for number in range(500):
        address = addresses[number % len(addresses)]
        connection = _open(address)
        if connection is not None:
            _send(connection, begin.get(address, b"\x01"))
            held.append(connection)
    while until:
        for connection in held:
            _send(connection, b"\0")
        time.sleep(_STEP)
    return {"opened": len(held), "closed by the daemon": sum(map(_over, held))}


def idle_and_probe(target: Target, seconds: float) -> dict[str, int]:
    """Opens connections as `idle` does, while a probe runs, which is always answered."""
    until, held, opened, probes = Until(seconds), [], 0, 0
    addresses = [address for name, address in target.listeners().items() if name != "http"]
    while until:
        for address in addresses:
            connection = _open(address)
            if connection is not None:
                held.append(connection)
                opened += 1
        if probes < 3:
            probes += 1
            subprocess.run([sys.executable, "-c", _PROBE, f"http://{target.http}/healthz"], check=True)
        for connection in held[: max(0, len(held) - 200)]:
            connection.close()
        del held[: max(0, len(held) - 200)]
        time.sleep(0.01)
    return {"opened": opened, "probes": probes}


def _open(address: str) -> socket.socket | None:
    try:
        connection = connect(address, 0.5)
    except OSError:
        return None
    connection.setblocking(False)
    return connection


def _send(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        connection.send(data)


def _over(connection: socket.socket) -> bool:
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


ROWS = (
    # Memory of 2,000 connections, in pieces that the allocator cannot return to the system immediately.
    Row("idle connections", idle, Budget(kept_mib=10)),
    Row("slowloris", slowloris),
    Row("idle connections, 64 descriptors", idle_and_probe, open_files=64),
    Row("idle connections, 256 descriptors", idle_and_probe, open_files=256),
    Row("idle connections, 1024 descriptors", idle_and_probe, open_files=1024),
)
