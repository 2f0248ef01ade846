"""What `hearthd serve` has imported when: times cannot be tested, what takes them can."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hearthd.front.launcher import PRELOAD, PRELOAD_OF

ROOT = Path(__file__).resolve().parents[3]


def run(code: str) -> str:
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(str(ROOT / part) for part in ("proto", "server")))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("imported", "left_out"),
    [
        # The forkserver's imports run beside the front's, so it is started before those are made.
        ("hearthd.front.start", ("grpc", "aiohttp", "prometheus_client", "uvloop", "hearthd.front.daemon")),
        # HTTP's are made while the devices start, and not at all where it is not wanted.
        ("hearthd.front.daemon", ("aiohttp", "hearthd.front.http")),
    ],
)
def test_what_can_wait_is_not_imported(imported: str, left_out: tuple[str, ...]) -> None:
    assert run(f"import sys, {imported}; print([m for m in {left_out} if m in sys.modules])") == "[]"


def test_the_forkserver_is_started_before_the_front_is_imported() -> None:
    code = """
import sys
from hearthd.config import Config
from hearthd.front import start

class Launcher:
    def __init__(self, backend):
        self.backend = backend
    def warm_up(self):
        print(self.backend, "hearthd.front.daemon" in sys.modules)
        raise SystemExit

start.ForkServerLauncher = Launcher
start.serve(Config.model_validate({"devices": {"backend": "cpu"}}))
"""
    assert run(code).splitlines()[-1] == "cpu False"


def test_a_device_process_of_the_cpu_backend_finds_its_modules_imported(tmp_path: Path) -> None:
    """What the forkserver has not imported, each device process does by itself, and each that replaces it."""
    code = f"""
import importlib, sys
for name in {(*PRELOAD, *PRELOAD_OF["cpu"])}:
    importlib.import_module(name)
before = set(sys.modules)
from hearthd.device.process import make_server
from hearthd.spec import DeviceSpec
make_server(DeviceSpec(0, "cpu", 0, cache_dir={str(tmp_path)!r})).close()
print(sorted(name for name in set(sys.modules) - before if name.startswith("hearth")))
"""
    assert run(code) == "[]"
