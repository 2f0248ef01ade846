"""A client in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.daemon.harness import environment


def run_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts a Python process that runs `code`."""
    command = [sys.executable, "-c", code, *arguments]
    env = environment(PYTHONPATH=os.pathsep.join(sys.path))
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
