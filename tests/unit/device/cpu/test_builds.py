"""Artifacts of the CPU backend: built once for a machine, by one process, which leaves no files if it is
killed."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

BUILD = """
import sys
from pathlib import Path
from hearthd.device.cpu.toolchain import Toolchain, lifeline
driver = '''
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
print(child.pid, file=open(sys.argv[1], "w"), flush=True)
child.wait()
'''
with lifeline() as reader:
    print("builds", flush=True)
    Toolchain((sys.executable,), "", False, Path()).run(["-c", driver, sys.argv[1]], cwd=Path("/"), lifeline=reader)
"""

ONCE = """
import sys
from pathlib import Path
from hearthd.device.cpu.cache import build_once
def build(scratch):
    print("builds", flush=True)
    sys.stdin.readline()
    (scratch / "by").write_text(sys.argv[2])
print((build_once(Path(sys.argv[1]), "thing", build) / "by").read_text(), flush=True)
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 20)[0], "the process printed nothing"
    return process.stdout.readline().strip()


def test_compiler_and_its_children_end_with_a_killed_process(tmp_path: Path) -> None:
    named = tmp_path / "child"
    os.mkfifo(named)
    with os.fdopen(os.open(named, os.O_RDWR), "rb", buffering=0) as fifo, start(BUILD, str(named)) as process:
        assert said(process) == "builds"
        assert select.select([fifo], [], [], 20)[0], "the compiler did not start"
        child = os.pidfd_open(int(fifo.read(64)))
        process.kill()
        assert select.select([child], [], [], 20)[0], "the compiler's child still runs"
        os.close(child)


def test_one_process_builds_while_others_wait_and_take_over(tmp_path: Path) -> None:
    with start(ONCE, str(tmp_path), "first") as first, start(ONCE, str(tmp_path), "second") as second:
        both = [first, second]
        ready = select.select([process.stdout for process in both], [], [], 20)[0]
        (builder,) = [process for process in both if process.stdout in ready]
        (other,) = [process for process in both if process is not builder]
        assert said(builder) == "builds"
        assert not select.select([other.stdout], [], [], 0.2)[0], "both build"
        builder.kill()
        assert said(other) == "builds"
        assert other.stdin is not None
        print(file=other.stdin, flush=True)
        assert said(other) == ("second" if other is second else "first")
