"""Fixtures of the tests of sessions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hearth
from hearth.session import attachment
from hearth.session.attachment import Attachment
from hearth.session.timing import Timing
from tests.support.client.internals import connection_of
from tests.support.client.lane_daemon import LaneDaemon
from tests.support.client.lane_timeouts import HOLD_S, long_timeouts


@pytest.fixture(autouse=True)
def _long_timeouts() -> Iterator[None]:
    with long_timeouts():
        yield


@pytest.fixture
def cores(request: pytest.FixtureRequest) -> int:
    """Number of the client's cores; with one or two, a waiting thread does not poll before it sleeps."""
    return int(getattr(request, "param", 1))


@pytest.fixture
def timing(request: pytest.FixtureRequest) -> Timing:
    """The times of the attachment."""
    return Timing(**{"lane_hold": HOLD_S, **getattr(request, "param", {})})


@pytest.fixture
def work(
    daemon: LaneDaemon, gpu: hearth.Device, cores: int, timing: Timing, monkeypatch: pytest.MonkeyPatch
) -> Attachment:
    """The attachment of the device, over a lane."""
    monkeypatch.setattr(attachment, "cores", lambda: cores)
    connection_of(gpu).timing = timing
    gpu.synchronize()
    return connection_of(gpu).attachment()
