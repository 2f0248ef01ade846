"""The systemd units: systemd's tools report no errors, and the daemon works under the restrictions of the units.

The tests do not start the units with systemd, so only `systemd-analyze` checks restrictions of mounts, devices and
control groups.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hearth
from tests.support.daemon.harness import BACKEND, environment
from tests.support.daemon.kernels import saxpy_works
from tests.support.deploy import under_unit
from tests.support.folders import ROOT
from tests.support.notify_socket import NotifySocket
from tests.support.programs import program

DEPLOY = ROOT / "deploy" / "systemd"
SYSTEM, USER = DEPLOY / "hearthd.service", DEPLOY / "user" / "hearthd.service"
DROP_INS = sorted((DEPLOY / "drop-ins").glob("*.conf"))
THRESHOLD = 3.0
HEARTHD = re.compile(r"(?<==)\S*/bin/hearthd")


def installed(folder: Path, unit: Path, drop_ins: list[Path]) -> Path:
    """Returns the path of a copy of the unit as installed, in which program paths exist."""
    program_path = folder / "hearthd"
    program_path.write_text("#!/bin/sh\n")
    program_path.chmod(0o755)
    there = folder / unit.name
    there.write_text(HEARTHD.sub(str(program_path), unit.read_text()))
    if drop_ins:
        beside = folder / f"{unit.name}.d"
        beside.mkdir()
        for drop_in in drop_ins:
            (beside / drop_in.name).write_text(drop_in.read_text().replace("/usr/bin/nvidia-modprobe", "/bin/true"))
    return there


@pytest.mark.parametrize(
    "drop_ins", [[], *([each] for each in DROP_INS)], ids=lambda given: "".join(p.stem for p in given)
)
def test_verify(tmp_path: Path, drop_ins: list[Path]) -> None:
    unit = installed(tmp_path, SYSTEM, drop_ins)
    done = subprocess.run(
        [program("systemd-analyze"), "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_verify_the_unit_of_one_user(tmp_path: Path) -> None:
    unit = installed(tmp_path, USER, [])
    env = environment(XDG_RUNTIME_DIR=str(tmp_path), HOME=str(tmp_path))
    command = [program("systemd-analyze"), "--user", "verify", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_verify_reports_an_unknown_setting(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.service"
    wrong.write_text(SYSTEM.read_text().replace("KillMode=mixed", "KillMod=mixed"))
    done = subprocess.run([program("systemd-analyze"), "verify", str(installed(tmp_path, wrong, []))],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert "KillMod" in done.stderr


def test_exposure() -> None:
    """The exposure level does not exceed `THRESHOLD`, and equals the level stated in the unit."""
    tool = program("systemd-analyze")
    arguments = ["security", "--offline=yes", "--no-pager", f"--threshold={THRESHOLD * 10:.0f}", str(SYSTEM)]
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    found = re.search(r"Overall exposure level for hearthd.service: ([\d.]+)", done.stdout)
    said = re.search(r"systemd-analyze security.*reports ([\d.]+)", SYSTEM.read_text())
    assert found is not None and said is not None
    assert float(found[1]) <= THRESHOLD and found[1] == said[1]
    arguments[3] = "--threshold=10"
    assert subprocess.run([tool, *arguments], capture_output=True, check=False).returncode != 0, "it can fail"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to create users in a separate directory")
def test_users_and_directories(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for tool, file in (("systemd-sysusers", "hearth.sysusers"), ("systemd-tmpfiles", "hearth.tmpfiles")):
        created = ["--create"] if tool == "systemd-tmpfiles" else []
        command = [program(tool), f"--root={tmp_path}", *created, str(DEPLOY / file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    (line,) = [line for line in (tmp_path / "etc/passwd").read_text().splitlines() if line.startswith("hearth:")]
    folder = (tmp_path / "etc/hearth").stat()
    assert folder.st_mode & 0o7777 == 0o750 and (folder.st_uid, folder.st_gid) == (0, int(line.split(":")[3]))


# ---- the command, under the restrictions of the unit ----


def command(line: str, config: Path) -> list[str]:
    """Returns the command of a line of the unit, with this checkout in place of /opt/hearth and /etc/hearth."""
    words = shlex.split(line)
    assert words[:1] == ["/opt/hearth/bin/hearthd"]
    return [sys.executable, "-m", "hearthd", *(str(config) if w == "/etc/hearth/hearth.toml" else w for w in words[1:])]


def confined(unit: Path, words: list[str], env: dict[str, str], **more: Any) -> subprocess.Popen[str]:
    try:
        ctypes.CDLL("libseccomp.so.2")
    except OSError:
        pytest.skip("libseccomp is not installed (it comes with systemd: `make tools`)")
    wrapper = [sys.executable, under_unit.__file__, str(unit), *words]
    return subprocess.Popen(wrapper, env=env, text=True, **more)


@pytest.fixture
def prefix() -> Iterator[Path]:
    """Yields a directory that contains the unit's directories."""
    with tempfile.TemporaryDirectory(prefix="hearth-test-") as folder:
        for name in ("run", "cache", "log"):
            (Path(folder) / name).mkdir(mode=0o700)
        yield Path(folder)


@pytest.mark.parametrize("unit", [SYSTEM, USER], ids=["system", "user"])
def test_filter_refuses_forbidden_calls(unit: Path) -> None:
    """The filter refuses forbidden calls, which shows that the filter was active for the permitted calls below."""
    program("systemd-analyze")
    code = """
import ctypes, os, socket
tried = {"ok": lambda: os.getpid(), "chown": lambda: os.chown(".", 0, 0), "setuid": lambda: os.setuid(0),
         "packet": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW), "inet": lambda: socket.socket().close(),
         "mount": lambda: ctypes.CDLL(None, use_errno=True).mount(b"x", b"/mnt", b"tmpfs", 0, None) and 1 / 0}
for name, call in tried.items():
    try:
        call()
    except (OSError, ZeroDivisionError):
        print(name)
print(open("/proc/self/status").read().split("NoNewPrivs:")[1].split()[0], oct(os.umask(0)))
"""
    with confined(unit, [sys.executable, "-c", code], environment(), stdout=subprocess.PIPE) as process:
        said, _ = process.communicate(timeout=60)
    assert said.split() == ["chown", "setuid", "packet", "mount", "1", "0o77"]


@pytest.mark.parametrize("unit", [SYSTEM, USER], ids=["system", "user"])
def test_daemon_runs_from_start_to_end_under_the_unit_restrictions(prefix: Path, unit: Path) -> None:
    program("systemd-analyze")
    manager = NotifySocket(prefix / "notify")
    config = prefix / "hearth.toml"
    socket_path = prefix / "run" / "hearth.sock"
    config.write_text(
        f'drain_timeout = "0s"\n[listen]\ngrpc = "127.0.0.1:0"\nhttp = ""\nlanes = ""\nunix = "{socket_path}"\n'
        f'[devices]\nbackend = "{BACKEND}"\ncpu_count = 1\n[audit]\npath = "{prefix}/log/audit.log"\n'
    )
    lines = {
        key: [HEARTHD.sub("/opt/hearth/bin/hearthd", f"={line}")[1:].replace("%E/", "/etc/") for line in values]
        for key, values in under_unit.settings(unit).items()
        if key in ("ExecStart", "ExecReload")
    }
    env = environment(NOTIFY_SOCKET=str(manager.path), CACHE_DIRECTORY=str(prefix / "cache"),
                      RUNTIME_DIRECTORY=str(prefix / "run"))  # fmt: skip
    log = (prefix / "stderr").open("w")
    pipes = {"stdout": subprocess.DEVNULL, "stderr": log}
    process = confined(unit, command(lines["ExecStart"][0], config), env, cwd=prefix / "cache", **pipes)
    try:
        manager.until(lambda said: "READY" in said, 60)
        with hearth.connect(f"unix:{socket_path}") as node:
            if unit == SYSTEM:  # for one unit only, because the filters are the same and a compile takes time
                saxpy_works(node.device(0))
            check, hang_up = lines["ExecReload"]
            done = subprocess.run(command(check, config), capture_output=True, text=True, check=False, env=env)
            assert done.returncode == 0, done.stderr
            kill = shlex.split(hang_up.replace("$MAINPID", str(process.pid)))
            subprocess.run(kill, check=True)
            manager.until(lambda said: "RELOADING" in said)
            manager.until(lambda said: said == {"READY": "1"})
            assert node.device(0).ones(3).get().sum() == 3
        kept = [path for path in (prefix / "cache").rglob("*") if path.is_file() and path.name != "key"]
        assert bool(kept) == (unit == SYSTEM), "compiled modules are kept in the unit's cache"
        config.write_text("[listen]\ngrcp = 1\n")
        done = subprocess.run(command(check, config), capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 2 and "listen.grpc" in done.stderr, "the reload fails, and reports the reason"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        log.close()
        manager.close()
    said = [json.loads(line) for line in (prefix / "stderr").read_text().splitlines()]
    lacking = [entry["lacking"] for entry in said if entry["event"] == "compile_workers"]
    free = under_unit_lacks()
    assert lacking == ([free] if free else []), "compilers have the same confinement as without the unit"


def test_both_units_let_the_same_calls_through() -> None:
    system, user = under_unit.settings(SYSTEM), under_unit.settings(USER)
    for key in ("RestrictAddressFamilies", "RestrictNamespaces", "UMask"):
        assert system[key] == user[key]
    assert [*system["SystemCallFilter"], "capset"] == user["SystemCallFilter"], "capset drops capabilities"
    assert system["CapabilityBoundingSet"] == [""], "there are no capabilities to drop"


def under_unit_lacks() -> str:
    """Returns the confinement features that compilers lack on this host independently of the unit."""
    from hearthd.device.platform.sandbox import landlock_version

    return "" if landlock_version() else "landlock"
