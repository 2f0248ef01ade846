"""Fixtures of the tests of memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hearth
from tests.support.daemon.harness import DaemonProcess


@pytest.fixture(params=["shared", "dedicated"])
def other(request: pytest.FixtureRequest, daemon: DaemonProcess) -> Iterator[hearth.Device]:
    """The same device in another session, which has the same or a separate process."""
    with daemon.connect(isolation=request.param) as node:
        yield node.device(0)
