"""Environments in which the programs of the documentation run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support import installed


@pytest.fixture(scope="session")
def reader_python(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a function from a page to the Python of an environment with only the packages that the page tells the
    reader to install."""

    @cache
    def made(requirements: tuple[str, ...]) -> Path:
        return installed.make(tmp_path_factory.mktemp("installed"), *requirements)

    return lambda page: made(tuple(installed.requirements_on(page)))
