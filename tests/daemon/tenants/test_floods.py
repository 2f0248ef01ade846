"""Floods from an address that reconnects immediately, and tenants that share the address."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hearth
from hearthd.front.connections.holding import ADMISSION_INTERVAL
from tests.attacks.raw_http2 import PING, SETTINGS, Http2, frame, message, status
from tests.attacks.target import Until
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.kernels import saxpy_works
from tests.support.daemon.lent import TenantDaemon

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0)
PINGS = frame(PING, 0, 0, struct.pack(">Q", 7)) * 2000
HEALTH = "/grpc.health.v1.Health/Check"
CONNECTIONS = 8


@pytest.fixture(scope="module")
def lent(cache: Path) -> Iterator[TenantDaemon]:
    with contextlib.closing(TenantDaemon(cache)) as daemon:
        yield daemon


@pytest.fixture
def daemon(lent: TenantDaemon) -> DaemonProcess:
    return lent.lend()


def value(daemon: DaemonProcess, token: str, name: str, *labels: str) -> float:
    """Returns the sum of the matching samples of /metrics; 0.0 if there are none."""
    page = daemon.get("/metrics", token).body
    lines = [
        line for line in page.splitlines() if line.startswith(f"{name}{{") and all(each in line for each in labels)
    ]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


class Flood:
    """Unauthenticated clients that send PING frames as fast as possible, and reconnect immediately. A context
    manager."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(CONNECTIONS)]

    def __enter__(self) -> Flood:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        host, _, port = self._target.rpartition(":")
        while not self._over.is_set():
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1) as connection:
                connection.setblocking(False)
                rest = PREFACE + PINGS
                while not self._over.is_set():
                    readable, writable, _ = select.select([connection], [connection], [], 0.1)
                    if readable and not connection.recv(1 << 16):
                        break
                    if writable:
                        rest = rest[connection.send(rest) :] or PINGS


def sent_again(target: str, source: str) -> int:
    """Returns the number of segments that a new connection from the address `source` had to retransmit until its first
    data was received."""
    host, _, port = target.rpartition(":")
    with socket.create_connection((host, int(port)), 10, (source, 0)) as connection:
        connection.sendall(PREFACE)

        def info(offset: int) -> int:  # offsets in struct tcp_info, linux/tcp.h
            found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
            return int.from_bytes(found[offset : offset + 4], sys.byteorder)

        wait_until(lambda: info(24) == 0, "acknowledgements")
        return info(100)


def test_a_flood_is_held_back_and_tenants_of_its_address_are_not_shut_out(
    lent: TenantDaemon, daemon: DaemonProcess
) -> None:
    def held() -> float:
        return value(daemon, lent.operator, "hearth_connections_held_total", 'listener="grpc"')

    def floods() -> float:
        return value(daemon, lent.operator, "hearth_connections_refused_total", 'listener="grpc"', 'reason="flood"')

    with hearth.connect(daemon.grpc, token=lent.token) as before:
        saxpy_works(before.device(0))
        with Flood(daemon.grpc):
            wait_until(lambda: held() > CONNECTIONS, "connections that are held")
            closed, began = floods(), time.monotonic()
            saxpy_works(before.device(0))
            with hearth.connect(daemon.grpc, token=lent.token, timeout=60, wait_for_ready=True) as late:
                saxpy_works(late.device(0))
            time.sleep(1.0)
            closed, passed = floods() - closed, time.monotonic() - began
            # One connection is admitted every ADMISSION_INTERVAL seconds; without a penalty each connection would be
            # closed and reopened within milliseconds.
            assert closed <= passed / ADMISSION_INTERVAL + 2 * CONNECTIONS
        assert sent_again(daemon.grpc, "127.0.0.1"), "the kernel accepted the data of a penalized address immediately"
        assert not all(sent_again(daemon.grpc, "127.0.0.2") for _ in range(3)), "another address was held back, too"
        probe = Http2(daemon.grpc)
        try:
            stream = probe.call(HEALTH, message(b""), end=True)
            probe.pump(Until(30.0), 1)
            assert status(probe.answers[stream]) == 0, "a probe has its turn too"
        finally:
            probe.close()
    wait_until(
        lambda: value(daemon, lent.operator, "hearth_connections", 'listener="grpc"') == 0, "the flood's connections"
    )
    assert '"connection_held"' in daemon.log()
