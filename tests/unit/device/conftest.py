"""Fixtures of all tests of the device process."""

from __future__ import annotations

import os

import pytest

from tests.support.device import rig


@pytest.fixture(scope="session", autouse=True)
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Sets the directory of compiled modules that rigs share, also with the other pytest workers of the run."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / "compiled-by-rigs"
    folder.mkdir(mode=0o700, exist_ok=True)
    rig.keep_compiled(str(folder))
