"""Directories of tests."""

from __future__ import annotations

import tempfile
from pathlib import Path


def short_folder() -> Path:
    """A new directory for sockets, whose paths have at most 107 bytes: not below a `TMPDIR` that is long itself. The
    caller removes it."""
    return Path(tempfile.mkdtemp(prefix="hearth-test-", dir="/tmp" if len(tempfile.gettempdir()) > 60 else None))
