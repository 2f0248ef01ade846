"""Standard streams that are closed when a command starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import os, sys
from hearth_proto import standard_streams
standard_streams.open_closed()
opened = os.open(os.devnull, os.O_RDONLY)
inherited = [number for number in range(3) if os.get_inheritable(number)]
print("out")
sys.stderr.write(f"{opened > 2} {inherited} {sys.stdin.read()!r}")
sys.exit(0 if opened > 2 and inherited == [0, 1, 2] and not sys.stdin.read() and sys.stderr.isatty() is False else 1)
"""


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_streams_are_dev_null(closed: str) -> None:
    command = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, CODE]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("" if "1>" in closed else "out\n")
