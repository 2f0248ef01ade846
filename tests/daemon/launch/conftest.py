"""Fixtures of the tests of launches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.client.lane_timeouts import long_timeouts


@pytest.fixture(autouse=True)
def _long_timeouts() -> Iterator[None]:
    with long_timeouts():
        yield
