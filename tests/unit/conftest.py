"""Configuration shared by the tests of one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A daemon or a device process inside the test may set how is logged, and where to: not for the tests behind it."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
