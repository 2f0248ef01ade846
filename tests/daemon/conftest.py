"""Fixtures: one shared daemon for each pytest worker, a new connection for each test, and private daemons for tests
that damage their daemon.

HEARTH_TEST_BACKEND=cuda runs the same tests against GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hearth
from hearth_proto.v1 import commands_pb2 as c
from tests.support.collectives.group_nodes import LentNodes
from tests.support.collectives.ranks import Ranks, several
from tests.support.daemon.durables import QUICK
from tests.support.daemon.harness import DaemonProcess, StartDaemon, shared_memory
from tests.support.daemon.kernels import saxpy_works
from tests.support.daemon.lent import LentDaemon
from tests.support.daemon.raw import KEEP, Execute, Raw
from tests.support.daemon.segments import Sharing


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of compiled modules, shared by all daemons of the run, so that each module is compiled once."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    path = base / "compiled"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


@pytest.fixture(scope="session")
def daemon(cache: Path) -> Iterator[DaemonProcess]:
    """The shared daemon of this pytest worker. Tests must leave its state unchanged."""
    segments = shared_memory()
    process = DaemonProcess(cache, fresh=True)
    yield process
    running = process.process.poll() is None
    generations = [device["generation"] for device in process.status()["devices"]] if running else []
    code = process.stop()
    log, left = process.log(), process.left_behind()
    process.remove()
    assert running, f"the shared daemon ended before its tests:\n{log[-4000:]}"
    assert code == 0, log[-4000:]
    assert not left
    # With several pytest workers, the segments of the other workers would be counted as well.
    if "PYTEST_XDIST_WORKER" not in os.environ:
        assert not shared_memory() - segments
    if '"event": "device_idle"' not in log:  # a process without sessions ends after devices.idle_timeout
        losses = "\n".join(line for line in log.splitlines() if '"level": "info"' not in line)
        assert set(generations) == {1}, f"a device of the shared daemon was lost:\n{losses[:20000]}"


@pytest.fixture
def node(daemon: DaemonProcess) -> Iterator[hearth.Node]:
    """A connection that no other test uses."""
    with daemon.connect() as connected:
        yield connected


@pytest.fixture
def gpu(node: hearth.Node) -> hearth.Device:
    return node.device(0)


@pytest.fixture
def pair(node: hearth.Node) -> list[hearth.Device]:
    """Two devices."""
    if len(node.devices) < 2:
        pytest.skip(f"needs two devices; the node has {len(node.devices)}")
    return node.devices[:2]


@pytest.fixture
def raw(daemon: DaemonProcess) -> Iterator[Raw]:
    """A session driven through plain gRPC stubs."""
    with Raw(daemon.unix) as session:
        yield session


@pytest.fixture
def start_daemon(cache: Path) -> Iterator[StartDaemon]:
    """Starts private daemons; keywords are sections of the configuration. All of them are stopped at the end of the
    test."""
    started: list[DaemonProcess] = []

    def start(
        cpu_count: int = 1, cache_dir: Path | None = None, open_files: int = 0, fresh: bool = False, **config: Any
    ) -> DaemonProcess:
        process = DaemonProcess(cache_dir or cache, config, cpu_count, open_files=open_files, fresh=fresh)
        started.append(process)
        return process

    yield start
    left: list[str] = []
    for process in started:
        process.stop()
        left += process.left_behind()
        process.remove()
    assert not left


@pytest.fixture(scope="session")
def lossy_daemon(cache: Path) -> Iterator[LentDaemon]:
    lent = LentDaemon(cache, {"devices": QUICK})
    yield lent
    lent.close()


@pytest.fixture
def lossy(lossy_daemon: LentDaemon) -> Iterator[DaemonProcess]:
    """The pytest worker's daemon for tests that lose devices any number of times, or that must not share a daemon. It
    has two devices, of any generation. Not for dedicated sessions: their processes also consume generation numbers, so
    a test could not predict the generation after its next loss."""
    process = lossy_daemon.lend()
    yield process
    print(process.log()[-4000:])


@pytest.fixture(scope="session")
def brief_daemon(cache: Path) -> Iterator[LentDaemon]:
    lent = LentDaemon(cache, {"sessions": {"lease": "1s"}})
    yield lent
    lent.close()


@pytest.fixture
def brief(brief_daemon: LentDaemon) -> DaemonProcess:
    """The pytest worker's daemon for tests of clients that disconnect: a session ends one second after its client has
    disconnected."""
    return brief_daemon.lend()


# ---- collectives ----


@pytest.fixture(scope="session")
def lent_nodes(cache: Path) -> Iterator[LentNodes]:
    """Daemons of one device each, for groups over several of them."""
    lent = LentNodes(cache)
    yield lent
    lent.close()


@pytest.fixture(scope="module")
def three(cache: Path) -> Iterator[DaemonProcess]:
    """The module's daemon with three devices."""
    with several(cache, 3) as process:
        yield process


@pytest.fixture
def ranks(three: DaemonProcess) -> Iterator[Ranks]:
    """A session with a stream on each of its devices."""
    with Ranks(three, 3) as session:
        yield session


# ---- requests that only a faulty or malicious client sends ----


@pytest.fixture
def unharmed(daemon: DaemonProcess) -> Iterator[None]:
    """Checks after the test that the daemon's device processes are the same as before and still serve other clients."""
    pids = [device["pid"] for device in daemon.status()["devices"]]
    yield
    with daemon.connect() as node:
        saxpy_works(node.device(0))
    assert [device["pid"] for device in daemon.status()["devices"]] == pids


@pytest.fixture
def stream(raw: Raw) -> Iterator[Execute]:
    """An attached Execute stream of a session that has one buffer, `KEEP`, of 16 zero bytes."""
    with raw.execute() as attached:
        attached.batch(
            c.Command(allocate=c.Allocate(buffer=KEEP, size=16)),
            c.Command(fill=c.Fill(buffer=KEEP, size=16, pattern=b"\0")),
        )
        yield attached


@pytest.fixture
def sharing(daemon: DaemonProcess) -> Iterator[Sharing]:
    """A plain client of the daemon that shares memory with its device process."""
    with Sharing(daemon.unix) as made:
        yield made
