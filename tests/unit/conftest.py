"""Configuration shared by the unit tests, which run in a single process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Restores the logging configuration, which a daemon or device process inside the test may have changed."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
