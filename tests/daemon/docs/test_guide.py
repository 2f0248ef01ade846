"""The programs of the guide, and the commands and configurations of the accompanying pages, run as shown."""

from __future__ import annotations

import getpass
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import trustme

from tests.support.daemon.harness import BACKEND, DaemonProcess, StartDaemon, environment, on_cpu
from tests.support.daemon.pages import fences
from tests.support.daemon.tenants import filled
from tests.support.folders import ROOT
from tests.support.installed import alone
from tests.support.programs import program

README = (ROOT / "README.md").read_text()
GUIDE, COMMAND_LINE, DEPLOYMENT = (
    (ROOT / "docs" / f"{name}.md").read_text() for name in ("guide", "command-line", "deployment")
)


Run = Callable[[str, DaemonProcess], list[str]]
"""Runs a program against a daemon, and returns the lines that it prints."""


def section(title: str, page: str = GUIDE) -> str:
    """Returns the text of a section of a page."""
    return page.split(f"\n## {title}\n")[1].split("\n## ", maxsplit=1)[0]


def program_of(title: str, place: int = 0, page: str = GUIDE) -> str:
    """Returns a program of a section of a page."""
    return [fence.text for fence in fences(section(title, page)) if fence.language == "python"][place]


@pytest.fixture
def run(reader_python: Callable[[str], Path]) -> Run:
    """Returns a function that runs a program with the packages of the guide, and returns the printed lines."""
    python = reader_python(GUIDE)

    def of_program(code: str, daemon: DaemonProcess) -> list[str]:
        done = subprocess.run(
            [python, "-c", code],
            env=alone(environment(HEARTH_TARGET=daemon.unix), python),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return of_program


@pytest.mark.parametrize(
    "code", [program_of("Sixty seconds", page=README), program_of("A first program")], ids=["README", "guide"]
)
def test_a_first_program(run: Run, daemon: DaemonProcess, code: str) -> None:
    first, profile, mean = run(code, daemon)
    assert first == "[ 0.  4.  8. 12.]"
    assert re.fullmatch(r"[1-9]\d* ns on the device", profile)
    assert mean == ("[1.5 1.5 1.5 1.5]" if BACKEND == "cpu" else mean)


def test_more_of_a_device(run: Run, daemon: DaemonProcess) -> None:
    code = program_of("More of a device")
    lines = run(code, daemon)
    printed = [line for line in lines if line.startswith("hello")]
    assert printed == ["hello from thread 40", "hello from thread 41"]
    shown = [line.rpartition("# ")[2] for line in code.splitlines() if re.match(r" +print\(.*# \[|.*sum.*# ", line)]
    assert [line for line in lines if line not in printed] == [*shown, "['scale', 'hello'] True"]


def test_arrays_as_numpy_has_them(run: Run, daemon: DaemonProcess) -> None:
    code = program_of("Arrays as NumPy has them")
    assert run(code, daemon) == ["[10.0, 1.0, 20.0, 3.0] bfloat16", "(4, 3) [10. 10. 10.] (4, 3)", "2.5"]


def test_without_numpy(run: Run, daemon: DaemonProcess) -> None:
    assert run(program_of("Without NumPy"), daemon) == ["[10.0, 20.0, 30.0, 40.0] 40.0 16 False"]


def test_asyncio(run: Run, daemon: DaemonProcess) -> None:
    assert run(program_of("asyncio"), daemon) == [
        "[array([0., 2., 4., 6.], dtype=float32), array([0., 2.], dtype=float32)]"
    ]


def test_when_something_breaks(run: Run, start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    code = program_of("When something breaks")
    shown = [line.rpartition("# ")[2].partition(":")[0] for line in code.splitlines() if re.match(r" +print\(", line)]
    assert run(code, daemon) == shown


def test_sharing_a_device(run: Run, daemon: DaemonProcess) -> None:
    code = program_of("Sharing a device")
    shown = [line.rpartition("# ")[2] for line in code.splitlines() if re.match(r" +print\(", line)]
    assert run(code, daemon) == shown


def test_with_cupy_and_pytorch(run: Run, daemon: DaemonProcess) -> None:
    code = program_of("Together with CuPy and PyTorch")
    assert run(code, daemon) == ["[ 0. 10. 20. 30.]"]


def test_several_devices(run: Run, lossy: DaemonProcess) -> None:
    code = program_of("Several devices")
    if len(lossy.status()["devices"]) < 2:
        pytest.skip("needs two devices")
    shown = [line.rpartition("# ")[2] for line in code.splitlines() if re.match(r" +print\(", line)]
    assert run(code, lossy) == shown


@on_cpu
def test_several_daemons(run: Run, start_daemon: StartDaemon) -> None:
    first, second = start_daemon(cpu_count=1), start_daemon(cpu_count=1)
    code = program_of("Several devices", 1).replace("gpu-box-1", first.unix).replace("gpu-box-2", second.unix)
    run(f"import numpy as np, hearth\n{code}print(group.all_reduce([group.devices[0].ones(1, np.int32)]))", first)


def shell(title: str) -> list[str]:
    """Returns the commands of the first fence of a section, without comments."""
    (first, *_) = fences(section(title, COMMAND_LINE))
    return [re.sub(r"\s+# .*", "", line) for line in first.text.splitlines() if line and not line.startswith("#")]


def test_from_the_shell(daemon: DaemonProcess, tmp_path: Path) -> None:
    (source,) = re.findall(r'source = r"""\n(.*?)"""', program_of("Sixty seconds", page=README), re.DOTALL)
    (tmp_path / "saxpy.cu").write_text(source)
    (tmp_path / "my_program.py").write_text("import hearth\nhearth.connect().device(0).zeros(3).get()\n")
    here = {  # replacements for commands that refer to the reader's machine, or that would not end
        "hearth top": "hearth top --once",
        "hearth doctor https://gpu-box:7421 --ca ca.pem": "hearth doctor",
        "hearth bench": "hearth bench --quick --max-size 1MiB",
    }
    commands = shell("From the shell")
    assert set(here) <= set(commands) and len(commands) > 9
    beside = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", here.get(command, command)],
            cwd=tmp_path,
            env=environment(HEARTH_TARGET=daemon.unix, PATH=beside),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert (np.load(tmp_path / "y.npy") == 2 * np.arange(1 << 20, dtype=np.float32) + 1).all()


def test_monitoring_section(daemon: DaemonProcess) -> None:
    look, check, prometheus = shell("Watch it")
    here = [command.replace("127.0.0.1:7422", daemon.http) for command in (look, check)]
    promtool = program("promtool")
    path = f"{Path(promtool).parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    for command in here:
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"],
            env=environment(PATH=path), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    config = prometheus.partition("--config.file=")[2]
    subprocess.run([promtool, "check", "config", ROOT / config], check=True, timeout=60, capture_output=True)


def test_configuration_of_the_deployment_page_is_accepted(tmp_path: Path) -> None:
    (text,) = [fence.text for fence in fences(DEPLOYMENT) if fence.language == "toml"]
    assert tomllib.loads(text)["listen"]["grpc"] == "0.0.0.0:7421"
    for name in ("tls.pem", "tls.key"):
        text = text.replace(f"/etc/hearth/{name}", str(tmp_path / name))
    authority = trustme.CA()
    certificate = authority.issue_cert("gpu-box")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "tls.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "tls.key")
    (tmp_path / "tls.key").chmod(0o600)
    text = text.replace('"alice"', f'"{getpass.getuser()}"')  # a user that is unknown on this machine is refused
    file = tmp_path / "hearth.toml"
    file.write_text(filled(text))
    for path in (file, ROOT / "deploy" / "hearth.toml"):
        command = [sys.executable, "-m", "hearthd", "check-config", "--config", str(path)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
