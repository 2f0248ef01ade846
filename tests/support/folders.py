"""Directories that tests use."""

from __future__ import annotations

import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The root directory of the repository."""


def short_folder() -> Path:
    """Returns a new directory for sockets: socket paths have at most 107 bytes, and the paths of `tmp_path` contain
    long test names. The caller removes the directory."""
    return Path(tempfile.mkdtemp(prefix="hearth-test-"))
