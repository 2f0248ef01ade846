"""Fixtures: daemons against which `hearth` commands run."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[str]:
    """Address of a socket that accepts connections and never answers."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        yield f"unix:{tmp_path / 's'}"
