"""The imports of `hearthd serve`, by process. Durations cannot be tested reliably, but their causes can."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hearthd.front.supervisor.forkserver import PRELOAD, PRELOAD_OF, guess
from tests.support.folders import ROOT


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
        # The forkserver's imports run in parallel with the front's, so it is started before them.
        (
            "hearthd.front.daemon.main",
            ("grpc", "aiohttp", "prometheus_client", "uvloop", "hearthd.front.daemon.daemon"),
        ),
        # HTTP is imported while the devices start, and not at all if it is switched off.
        ("hearthd.front.daemon.daemon", ("aiohttp", "hearthd.front.http")),
    ],
)
def test_unneeded_modules_are_not_imported_at_the_start(imported: str, left_out: tuple[str, ...]) -> None:
    assert run(f"import sys, {imported}; print([m for m in {left_out} if m in sys.modules])") == "[]"


def test_the_forkserver_is_started_before_the_front_is_imported() -> None:
    code = """
import sys
from hearthd.front.config.loader import Config
from hearthd.front.daemon import main

class Launcher:
    def __init__(self, backend):
        self.backend = backend
    def warm_up(self):
        print(self.backend, "hearthd.front.daemon.daemon" in sys.modules)
        raise SystemExit

main.ForkServerLauncher = Launcher
main.serve(Config.model_validate({"devices": {"backend": "cpu"}}))
"""
    assert run(code).splitlines()[-1] == "cpu False"


@pytest.mark.parametrize(
    ("arguments", "environ", "file", "driver", "expected"),
    [
        ((), {}, "", False, "cpu"),
        ((), {}, "", True, "cuda"),
        (("--backend", "cpu"), {}, "", True, "cpu"),
        (("--backend=cpu", "--insecure"), {"HEARTH_DEVICES_BACKEND": "cuda"}, "", True, "cpu"),
        ((), {"HEARTH_DEVICES_BACKEND": "cuda"}, "", False, "cuda"),
        (("-c", "FILE"), {}, '[devices]\nbackend = "cpu"\n', True, "cpu"),
        ((), {"HEARTH_CONFIG": "FILE"}, '[devices]\nbackend = "cpu"\n', True, "cpu"),
        (("--config=FILE",), {}, '[devices]\nbackend = "auto"\n', False, "cpu"),
        (("--config", "FILE"), {}, "[devices]\nbackend = 7\n", True, "cuda"),
        (("--config", "FILE"), {}, "devices = 7", True, "cuda"),
        (("--config", "FILE"), {}, "not valid TOML", True, "cuda"),
        (("--config", "FILE.absent"), {}, "", False, "cpu"),
        (("--backend",), {}, "", False, "cpu"),
        (("--backend", "tpu"), {}, "", False, "cpu"),
    ],
)
def test_modules_to_preload_are_guessed_before_the_configuration_is_read(
    tmp_path: Path, arguments: tuple[str, ...], environ: dict[str, str], file: str, driver: bool, expected: str
) -> None:
    there = tmp_path / "hearth.toml"
    there.write_text(file)
    path = there if driver else tmp_path / "absent"
    arguments = tuple(each.replace("FILE", str(there)) for each in arguments)
    environ = {name: value.replace("FILE", str(there)) for name, value in environ.items()}
    assert guess(arguments, environ, path) == expected


@pytest.mark.parametrize("wrong", [("--backend", "tpu"), ("--no-such-flag",), ("--config", "/absent.toml")])
def test_a_daemon_that_cannot_start_leaves_no_forkserver(wrong: tuple[str, ...]) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEARTH_")}
    env["PYTHONPATH"] = os.pathsep.join(str(ROOT / part) for part in ("proto", "server"))
    command = [sys.executable, "-m", "hearthd", "serve", *wrong]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    # The pipes were inherited, so `run` would have waited for any process that still has them open.


def test_structlog_is_imported_without_optional_packages() -> None:
    for start in ("hearthd.front.daemon.main", "hearthd.device.process.device_process", "hearthd.shared.log"):
        found = run(f"import sys, {start}; print([name in sys.modules for name in ('structlog', 'rich', 'pygments')])")
        assert found == "[True, False, False]", start


def test_a_device_process_of_the_cpu_backend_finds_its_modules_imported(tmp_path: Path) -> None:
    """A module that the forkserver has not imported would be imported by each device process and each replacement."""
    code = f"""
import importlib, sys
for name in {(*PRELOAD, *PRELOAD_OF["cpu"])}:
    importlib.import_module(name)
before = set(sys.modules)
from hearthd.device.broker.main import start_broker
from hearthd.device.process.device_process import make_server
from hearthd.shared.device_spec import DeviceSpec
spec = DeviceSpec(0, "cpu", 0, cache_dir={str(tmp_path)!r})
broker = start_broker(spec)
make_server(spec, broker).close()
broker.close()
print(sorted(name for name in set(sys.modules) - before if name.startswith("hearth")))
"""
    assert run(code) == "[]"
