"""A session ends immediately when its client's process ends on the same host, and otherwise keeps its lease."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hearth
from hearth_proto.v1 import node_pb2
from tests.support.daemon.client_process import run_python
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.raw import Raw

LEASE_S = 3600
"""Longer than any test, so that resources that are freed during a test were freed without waiting for the lease."""

CLIENT = """
import ctypes, os, sys, hearth, numpy as np
from hearth.endpoint import open_session
from tests.support.client.internals import session_of
target, *options = sys.argv[1:]
if "undeclared" in options:
    open_session.process_name = lambda: "host:1"
node = hearth.connect(target, lanes="grpc" not in options)
gpu = node.device(0)
x = gpu.ones(1 << 20, np.float32)
gpu.publish("weights", x)
gpu.synchronize()
forks = {"fork": os.fork, "raw fork": ctypes.CDLL(None).fork}  # the second without Python's hooks, which close sockets
child = forks[options[0]]() if options and options[0] in forks else -1
if child == 0:
    sys.stdin.read()
    os.kill(os.getpid(), 9)
print(node.session_id, session_of(node).token, child, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def started(cache: Path) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess(cache, {"sessions": {"lease": f"{LEASE_S}s"}})
    yield daemon
    daemon.stop()
    daemon.remove()


@pytest.fixture
def daemon(started: DaemonProcess) -> Iterator[DaemonProcess]:
    yield started
    with started.connect() as node:
        for session in node.sessions():
            if session.session_id != node.session_id:
                node.end_session(session.session_id)


class Client:
    """A client in a separate process, which has published an array."""

    def __init__(self, daemon: DaemonProcess, *options: str) -> None:
        self.process = run_python(CLIENT, daemon.unix, *options)
        assert self.process.stdout is not None and self.process.stdin is not None
        self.session, self.token, child = self.process.stdout.readline().split()
        self.child = int(child)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def listed(self, daemon: DaemonProcess) -> bool:
        return self.session in [each["id"] for each in daemon.status()["sessions"]]

    def connected(self, daemon: DaemonProcess) -> bool:
        return any(each["connected"] for each in daemon.status()["sessions"] if each["id"] == self.session)


@pytest.fixture
def node(daemon: DaemonProcess) -> Iterator[hearth.Node]:
    with daemon.connect() as connected:
        yield connected


def test_name_and_memory_of_a_killed_client_are_freed_immediately(daemon: DaemonProcess, node: hearth.Node) -> None:
    client, gpu = Client(daemon), node.device(0)
    with pytest.raises(hearth.HearthError, match="weights"):
        gpu.publish("weights", gpu.zeros(4, np.float32))
    assert client.session in [each.session_id for each in node.sessions()]
    client.kill()
    wait_until(lambda: not client.listed(daemon), "the end of the session")
    assert client.session not in [each.session_id for each in node.sessions()]
    wait_until(lambda: daemon.gauge("memory_in_use_bytes") == 0, "its memory")
    gpu.publish("weights", gpu.zeros(4, np.float32))
    assert "the process of its client ended" in daemon.log()


def test_a_stopped_client_keeps_its_session(daemon: DaemonProcess) -> None:
    client = Client(daemon)
    os.kill(client.process.pid, signal.SIGSTOP)
    threading.Event().wait(2.5)  # longer than two rounds of the task that ends sessions
    assert client.listed(daemon)
    client.kill()
    wait_until(lambda: not client.listed(daemon), "the end of the session")


def test_a_client_that_is_not_connected_keeps_its_session_while_its_process_runs(daemon: DaemonProcess) -> None:
    with daemon.connect() as idle:  # no device is used, so that no connection stays open
        client = Client(daemon)
        client.kill()
        wait_until(lambda: not client.listed(daemon), "the end of the other session")
        assert idle.session_id in [each["id"] for each in daemon.status()["sessions"]]
        assert idle.device(0).ones(4).get().sum() == 4


def test_a_session_ends_when_the_last_process_that_holds_its_connection_ends(daemon: DaemonProcess) -> None:
    client = Client(daemon, "raw fork")
    client.kill()
    threading.Event().wait(1.5)
    assert client.connected(daemon)
    os.kill(client.child, signal.SIGKILL)
    wait_until(lambda: not client.listed(daemon), "the end of the session")


def test_a_forked_child_does_not_keep_the_session_of_its_parent(daemon: DaemonProcess) -> None:
    client = Client(daemon, "fork")
    client.kill()
    wait_until(lambda: not client.listed(daemon), "the end of the session")
    os.kill(client.child, signal.SIGKILL)


@pytest.mark.parametrize("option", ["grpc", "undeclared"])
def test_a_client_whose_process_is_unknown_keeps_its_lease(daemon: DaemonProcess, option: str) -> None:
    """gRPC does not identify the process, and a process other than the declared one may be a proxy, such as sshd."""
    client = Client(daemon, option)
    client.kill()
    wait_until(lambda: not client.connected(daemon), "the end of its connection")
    threading.Event().wait(1.5)
    assert client.listed(daemon)


def test_a_session_that_another_process_uses_keeps_its_lease(daemon: DaemonProcess) -> None:
    client = Client(daemon)
    with Raw(daemon.unix) as raw:
        renewal = node_pb2.RenewSessionRequest(session_token=client.token)
        raw.node.RenewSession(renewal, timeout=10)
        client.kill()
        wait_until(lambda: not client.connected(daemon), "the end of its connection")
        threading.Event().wait(1.5)
        assert raw.node.RenewSession(renewal, timeout=10).lease_ns == LEASE_S * 10**9
