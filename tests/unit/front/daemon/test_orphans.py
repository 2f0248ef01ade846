"""Orphans are reaped, and no other processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from hearthd.front.daemon.orphans import reaping_orphans


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


def in_a_process() -> tuple[bool, bool]:
    """Returns whether a process that was adopted, and one that was started here, are zombies some time after their
    end."""
    stray = os.posix_spawn("/bin/true", ["true"], {})

    async def main() -> tuple[bool, bool]:
        with reaping_orphans(lambda: [excluded], tick=0.005):
            for _ in range(40):
                await asyncio.sleep(0.01)
                if not _zombie(stray):
                    break
        return _zombie(stray), _zombie(excluded)

    os.waitid(os.P_PID, stray, os.WEXITED | os.WNOWAIT)
    excluded = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, excluded, os.WEXITED | os.WNOWAIT)
    return asyncio.run(main())


def test_only_orphans_are_reaped() -> None:
    # In a separate process, because this process has children of pytest.
    code = "from tests.unit.front.daemon import test_orphans as t; print(t.in_a_process())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout.strip() == "(False, True)", done.stderr
