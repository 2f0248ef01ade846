"""Forked daemons and commands behave as if a new interpreter had run them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.daemon.harness import DaemonProcess, environment, fork_server, hearthd, marked, on_cpu, started

pytestmark = on_cpu


def test_commands_end_and_print_as_in_a_fresh_interpreter(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[listen]\ngrcp = ''\n")
    for arguments in (["version"], ["check-config", str(wrong)], ["serve", "--config", str(wrong)], ["no-command"]):
        command = [sys.executable, "-m", "hearthd", *arguments]
        fresh = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60, check=False)
        forked = hearthd(*arguments)
        assert (forked.returncode, forked.stdout, forked.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)


def test_daemon_is_a_child_with_its_own_arguments_environment_and_descriptors(
    start_daemon: Callable[..., DaemonProcess],
) -> None:
    first, second = start_daemon(), start_daemon()
    for daemon, other in ((first, second), (second, first)):
        proc = Path(f"/proc/{daemon.process.pid}")
        arguments = (proc / "cmdline").read_text().rstrip("\0").split("\0")
        assert arguments[1:4] == ["-m", "hearthd", "serve"] and str(daemon.config_path) in arguments
        assert int((proc / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid()
        assert {daemon.process.pid, daemon.device_pid()} <= set(marked(daemon.mark))
        assert not set(marked(daemon.mark)) & set(marked(other.mark))
        assert other.log_path not in [each.readlink() for each in (proc / "fd").iterdir()]


def test_environment_that_modules_may_read_is_for_a_fresh_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fork_server().suits(environment())
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    assert not fork_server().suits(environment())
    with started(["hearthd", "version"], environment(), subprocess.PIPE) as process:
        assert type(process) is subprocess.Popen and process.communicate()[0].startswith("hearthd ")
