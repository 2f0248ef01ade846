"""Objects created and freed repeatedly leave no resources: a short soak test for resources that grow with each
turn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.held import Held, held_by
from tests.support.daemon.kernels import COMMON, saxpy_works

TURNS = 120
MAPS = 20
"""Number of additional mappings that the allocator may make."""
PRIVATE_KIB = 12 << 10


def modules(daemon: DaemonProcess) -> Callable[[], None]:
    """Modules that are loaded, run and unloaded. Each has separate mappings, of which a process may have 65530."""
    node = daemon.connect()
    gpu = node.device(0)

    def turn() -> None:
        module = gpu.RawModule(code=COMMON)
        x = gpu.zeros(8, np.int32)
        module.get_function("add_one")((1,), (8,), (x, np.int32(8)))
        assert (x.get() == 1).all()

    return turn


def graphs(daemon: DaemonProcess) -> Callable[[], None]:
    node = daemon.connect()
    gpu = node.device(0)
    add_one = gpu.RawModule(code=COMMON).get_function("add_one")

    def turn() -> None:
        x = gpu.zeros(8, np.int32)
        with gpu.graph() as graph:
            add_one((1,), (8,), (x, np.int32(8)))
        with gpu.prepared() as prepared:
            add_one((1,), (8,), (x, np.int32(8)))
        graph.launch(2)
        prepared.launch(2)
        with gpu.stream() as stream:
            stream.record()
        assert (x.get() == 4).all()

    return turn


def sessions(daemon: DaemonProcess) -> Callable[[], None]:
    def turn() -> None:
        with daemon.connect() as node:
            gpu = node.device(0)
            x = gpu.durable(gpu.zeros(10_000, np.uint8))
            x.checkpoint()
            assert not x.get().any()

    return turn


def published(daemon: DaemonProcess) -> Callable[[], None]:
    one, other = daemon.connect(), daemon.connect()

    def turn() -> None:
        one.device(0).publish("weights", one.device(0).ones(1000))
        assert (other.device(0).attach("weights").get() == 1).all()
        one.device(0).unpublish("weights")

    return turn


def communicators(daemon: DaemonProcess) -> Callable[[], None]:
    """A rank that arrives too late makes its operation fail, and the next operation works."""
    node = daemon.connect()
    group = hearth.Group(node.devices)

    def turn() -> None:
        parts = [device.ones(100, np.float32) for device in node.devices]
        group.all_reduce(parts)
        assert all((part.get() == len(parts)).all() for part in parts)

    return turn


@pytest.mark.parametrize("what", [modules, graphs, sessions, published, communicators])
def test_repeated_sessions_leave_no_resources(
    start_daemon: StartDaemon, what: Callable[[DaemonProcess], Callable[[], None]]
) -> None:
    daemon = start_daemon(cpu_count=2)
    with daemon.connect() as node:
        saxpy_works(node.device(0))
    turn = what(daemon)
    for _ in range(TURNS // 4):
        turn()
    before = [held_by(daemon.device_pid()), held_by(daemon.process.pid)]
    for _ in range(TURNS):
        turn()

    def steady() -> bool:
        now = [held_by(daemon.device_pid()), held_by(daemon.process.pid)]
        return all(_same(a, b) for a, b in zip(now, before, strict=True))

    wait_until(steady, f"being as before ({before}; {held_by(daemon.device_pid())})", 5)


def _same(now: Held, before: Held) -> bool:
    return (
        sum(now.fds.values()) <= sum(before.fds.values()) + 2
        and now.maps <= before.maps + MAPS
        and now.private_kib <= before.private_kib + PRIVATE_KIB
        and now.threads <= before.threads + 6
    )
