"""Programs that are no Python packages, and that some tests drive: `make tools` installs them on Debian and its kin.

A test that needs one which is not there is skipped, and says so.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

_PACKAGES = {"promtool": "prometheus", "chromium": "chromium", "systemd-analyze": "systemd"}


def program(name: str) -> str:
    """Its path. Skips the test where it is not installed."""
    beside = Path(sys.executable).parent  # of the virtual environment
    found = shutil.which(name, path=f"{beside}:{os.environ.get('PATH', os.defpath)}")
    if found is None:
        pytest.skip(f"{name} is not installed (`make tools`, or the package {_PACKAGES.get(name, name)})")
    return found
