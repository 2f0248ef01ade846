"""Modules of an idle front. Its memory varies with the machine, but the modules that it has loaded do not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.support.daemon.harness import BACKEND, environment

PROGRAM = """
import atexit, sys

atexit.register(lambda: print(*sys.modules))
from hearthd.cli.main import main

main()
"""

NOT_NEEDED = {
    "numpy", "cupy", "cuda", "hearth", "hearthd.device", "opentelemetry", "cryptography", "hearthd.cli.demo",
    "hearthd.front.audit.verify", "unittest", "pydantic.v1", "concurrent.futures.process",
}  # fmt: skip
"""Modules and packages that an idle front does not need. They are for device processes, for clients, and for settings
and commands that this daemon does not use."""


def test_idle_front_loads_only_needed_modules(tmp_path: Path) -> None:
    command = [
        sys.executable, "-c", PROGRAM, "serve", "--backend", BACKEND, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0",
        "--lanes", "", "--unix", str(tmp_path / "h.sock"), "--log-level", "error",
    ]  # fmt: skip
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(HEARTH_CACHE_DIR=str(tmp_path / "cache"), HEARTH_DEVICES_CPU_COUNT="1"),
        stdout=subprocess.PIPE,
        text=True,
    ) as front:
        assert front.stdout is not None
        try:
            assert any(line.startswith("hearthd ready") for line in iter(front.stdout.readline, ""))
            front.send_signal(signal.SIGTERM)
            last = front.stdout.read().splitlines()[-1]
        finally:
            front.kill()
    loaded = set(last.split())
    assert {"hearthd.front.daemon.daemon", "hearthd.front.http.server"} <= loaded, last
    assert not NOT_NEEDED & loaded, sorted(NOT_NEEDED & loaded)
