"""Sandbox of a process: reachable files, sockets and system calls. Each test confines a separate process
permanently."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hearthd.device.platform import sandbox

needs_landlock = pytest.mark.skipif(sandbox.landlock_version() == 0, reason="this kernel has no Landlock")

PYTHON = [str(Path(sys.base_prefix) / "lib"), str(Path(sys.prefix) / "lib"), "/lib", "/usr/lib", "/lib64"]


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def refused(script: str, *arguments: object) -> str:
    done = run(script, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


CONFINED = """
import os, socket, subprocess, sys
from pathlib import Path
from hearthd.device.platform import sandbox
secret, readable, scratch, *python = sys.argv[1:]
held = open(secret)
in_force = sandbox.confine([readable, *python, "/no/such/path"], [scratch, "/dev/null"])
assert in_force.startswith("landlock "), in_force
def no(action, *errors):
    try: action()
    except errors or (PermissionError,) as error: print(type(error).__name__)
    else: raise AssertionError("it was allowed")
"""


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Returns a secret file, a readable directory, and a writable directory."""
    secret, readable, scratch = tmp_path / "secret", tmp_path / "readable", tmp_path / "scratch"
    secret.write_text("a secret text")
    readable.mkdir()
    scratch.mkdir()
    (readable / "header.h").write_text("int x;")
    (readable / "link").symlink_to(secret)
    return secret, readable, scratch


@needs_landlock
def test_files_outside_are_out_of_reach(paths: tuple[Path, Path, Path]) -> None:
    script = """
assert Path(readable, "header.h").read_text() == "int x;"
no(lambda: open(secret))
no(lambda: open("/etc/passwd"))
no(lambda: open("/proc/1/environ"))
no(lambda: os.listdir("/"))
no(lambda: open(Path(readable, "link")))
no(lambda: Path(readable, "new").write_text("x"))
no(lambda: Path(readable, "header.h").unlink())
no(lambda: os.rename(Path(readable, "header.h"), Path(scratch, "mine")), OSError)
no(lambda: os.link(secret, Path(scratch, "mine")), OSError)
assert held.read() == "a secret text", "files that were open before stay open"
"""
    refused(CONFINED + script, *paths, *PYTHON)


@needs_landlock
def test_scratch_directory_is_usable(paths: tuple[Path, Path, Path]) -> None:
    script = """
mine = Path(scratch, "a", "b")
mine.mkdir(parents=True)
(mine / "file").write_text("x")
(mine / "file").rename(mine / "other")
assert (mine / "other").read_text() == "x"
(mine / "other").unlink(); mine.rmdir()
Path("/dev/null").write_text("x")
Path(scratch, "out").symlink_to(secret)
no(lambda: open(Path(scratch, "out")))
program = Path(scratch, "program")
program.write_text("#!/bin/sh\\n"); program.chmod(0o700)
no(lambda: subprocess.run([program]))
"""
    refused(CONFINED + script, *paths, *PYTHON)


@needs_landlock
def test_child_processes_are_confined_too(paths: tuple[Path, Path, Path]) -> None:
    script = """
done = subprocess.run(["/usr/bin/cat", secret, "/etc/passwd"], capture_output=True, text=True)
assert done.returncode and not done.stdout and done.stderr.count("ermission denied") == 2, done
assert "NoNewPrivs:\\t1" in held_status.read()
"""
    opened = CONFINED.replace("held = open(secret)", "held_status = open('/proc/self/status')")
    refused(opened + script, *paths, *PYTHON, "/usr/bin")


@needs_landlock
@pytest.mark.skipif(sandbox.landlock_version() < 6, reason="this kernel's Landlock knows only files")
def test_the_network_and_other_processes_are_shut(paths: tuple[Path, Path, Path]) -> None:
    script = """
listener = socket.socket(); no(lambda: listener.bind(("127.0.0.1", 0)))
client = socket.socket(); no(lambda: client.connect(("127.0.0.1", 1)))
no(lambda: os.kill(os.getppid(), 0))
child = subprocess.Popen(["/usr/bin/sleep", "60"])
child.kill(); child.wait()
"""
    refused(CONFINED + script, *paths, *PYTHON, "/usr/bin")


def test_limits_of_one_job() -> None:
    script = """
import resource, signal, time
from hearthd.device.platform import sandbox
sandbox.limit(file_bytes=1000, files=20)
assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
assert resource.getrlimit(resource.RLIMIT_FSIZE) == (1000, 1000)
for _ in range(3):  # anew each time
    sandbox.allot(memory=64 << 20, seconds=1)
    kept = bytearray(32 << 20)
    try: bytearray(256 << 20)
    except MemoryError: pass
    else: raise AssertionError("too much memory was to be had")
try: [open("/dev/null") for _ in range(30)]
except OSError as error: assert error.errno == 24
sandbox.allot(memory=64 << 20, seconds=-1)  # the time used so far, and up to a second
while True: pass
"""
    done = run(script)
    assert done.returncode == -24, (done.returncode, done.stderr)  # SIGXCPU
