"""Directories of tests."""

from __future__ import annotations

import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The top of the tree."""


def short_folder() -> Path:
    """A new directory for sockets, whose paths have at most 107 bytes; the names of tests in `tmp_path` are long. The
    caller removes it."""
    return Path(tempfile.mkdtemp(prefix="hearth-test-"))
