"""Programs that are not Python packages and are used by some tests: `make tools` installs them on Debian and its
derivatives.

A test that needs a missing program is skipped with a message.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

_PACKAGES = {"promtool": "prometheus", "chromium": "chromium", "systemd-analyze": "systemd"}


def program(name: str) -> str:
    """Returns the program's path. Skips the test if the program is not installed."""
    directory = Path(sys.executable).parent  # the `bin` directory of the virtual environment
    path = shutil.which(name, path=f"{directory}:{os.environ.get('PATH', os.defpath)}")
    if path is None:
        pytest.skip(f"{name} is not installed (`make tools`, or the package {_PACKAGES.get(name, name)})")
    return path
