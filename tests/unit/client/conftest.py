"""A fake daemon and a node connected to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hearth
from tests.support.client.fake_daemon import FakeDaemon


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    daemon = FakeDaemon()
    yield daemon
    daemon.stop()


@pytest.fixture
def node(daemon: FakeDaemon) -> Iterator[hearth.Node]:
    with hearth.connect(daemon.target) as node:
        yield node


@pytest.fixture
def gpu(node: hearth.Node) -> hearth.Device:
    return node.device(0)
