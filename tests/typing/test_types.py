"""The package as installed: the wheel, unpacked in a directory without the other files of this repository.

Its types as mypy and pyright find them from outside, its files and its metadata.
"""

from __future__ import annotations

import email
import email.message
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import hearth_proto
from tests.support import installed
from tests.support.programs import program

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOOD, WRONG = HERE / "good_program.py", HERE / "wrong_program.py"
EXPECTED = {
    number: found[1]
    for number, line in enumerate(WRONG.read_text().splitlines(), 1)
    if (found := re.search(r"# E: ([a-z-]+)$", line))
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the wheel, and its dependencies from the present one: a path file
    names it, whose own path files, the editable install's among them, are not followed."""
    folder = tmp_path_factory.mktemp("user")
    venv.EnvBuilder(symlinks=True).create(folder)
    site = next(folder.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as files:
        files.extractall(site)
    (site / "present.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n{sysconfig.get_paths()['platlib']}\n")
    return folder / "bin" / "python"


def clean() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH", "VIRTUAL_ENV")}


def test_packages_are_imported_from_the_wheel(python: Path) -> None:
    code = "import hearth, hearth_proto, hearthd; print(hearth.__file__, hearth_proto.__file__, hearthd.__file__)"
    found = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, env=clean(), check=True, cwd=python.parent
    )
    assert all(Path(each).is_relative_to(python.parents[1]) for each in found.stdout.split())


def test_mypy_accepts_the_good_program_and_reports_each_error_of_the_wrong_one(
    python: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kept = getattr(request.config, "cache", None)  # mypy's cache of the standard library and NumPy from the last run
    cache = tmp_path / "cache" if kept is None else kept.mkdir("mypy-of-the-wheel")
    command = [
        sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file=",
        "--python-executable", str(python), "--cache-dir", str(cache), str(GOOD), str(WRONG),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=clean(), cwd=tmp_path, timeout=110, check=False)
    found: dict[int, str] = {}
    for line in done.stdout.splitlines():
        said = re.match(r"(.*?):(\d+): error: (.*)  \[([a-z-]+)\]$", line)
        if said is None:
            assert ": note: " in line, line + done.stderr
            continue
        assert said[1].endswith(WRONG.name), f"a correct line was refused: {line}"
        found[int(said[2])] = said[4]
    assert found == EXPECTED, done.stdout


def test_pyright_agrees(python: Path, tmp_path: Path) -> None:
    for each in (GOOD, WRONG):  # pyright checks the files next to its settings
        shutil.copy(each, tmp_path)
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [program("pyright"), "--project", str(tmp_path), "--pythonpath", str(python), "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, env=clean(), cwd=tmp_path, timeout=110, check=False)
    said = [each for each in json.loads(done.stdout)["generalDiagnostics"] if each["severity"] == "error"]
    lines = {each["range"]["start"]["line"] + 1 for each in said if each["file"].endswith(WRONG.name)}
    right = [
        f"{each['range']['start']['line'] + 1}: {each['message']}" for each in said if each["file"].endswith(GOOD.name)
    ]
    assert not right and set(EXPECTED) <= lines, done.stdout


def test_contents_of_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"hearth", "hearthd", "hearth_proto"}
    assert {"hearth/py.typed", "hearth_proto/py.typed"} <= names
    assert not [name for name in names if re.search(r"(^|/)(tests?|conftest|\.|__pycache__)|\.pyc$", name)]
    here = {
        f"{package}/{path.relative_to(ROOT / home / package)}"
        for home, package in (("client", "hearth"), ("server", "hearthd"), ("proto", "hearth_proto"))
        for path in (ROOT / home / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert here <= names, "a part of a package was left out"
    deploy = {
        path.relative_to(ROOT) for name in ("examples", "systemd") for path in (ROOT / "deploy" / name).rglob("*.*")
    }
    assert {f"hearthd/{path}" for path in deploy if (ROOT / path).is_file()} <= names
    assert "hearthd/deploy/hearth.toml" in names


def metadata(wheel: Path, name: str) -> email.message.Message:
    with zipfile.ZipFile(wheel) as files:
        (path,) = (each for each in files.namelist() if each.endswith(f".dist-info/{name}"))
        return email.message_from_bytes(files.read(path))


def test_metadata_of_the_wheel(wheel: Path) -> None:
    said = metadata(wheel, "METADATA")
    assert said["Name"] == "hearth-gpu" and said["Requires-Python"] == ">=3.11"
    assert said["Version"] == hearth_proto.VERSION
    assert said["License-Expression"] == "Apache-2.0" and said.get_all("License-File") == ["LICENSE"]
    assert said["Author"] and "Environment :: GPU :: NVIDIA CUDA" in said.get_all("Classifier", [])
    with zipfile.ZipFile(wheel) as files:
        (licence,) = (each for each in files.namelist() if each.endswith(".dist-info/licenses/LICENSE"))
        assert files.read(licence) == (ROOT / "LICENSE").read_bytes()
    assert "Typing :: Typed" in said.get_all("Classifier", []) and said["Summary"] and said.get_payload()
    plain = [each for each in said.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert {re.split(r"[^a-z]", each)[0] for each in plain} == {"grpcio", "protobuf", "numpy"}
    assert {"server", "cuda12", "cuda13", "cpu", "dev"} <= set(said.get_all("Provides-Extra", []))
    with zipfile.ZipFile(wheel) as files:
        (path,) = (each for each in files.namelist() if each.endswith(".dist-info/entry_points.txt"))
        assert files.read(path).decode().split("\n")[1:3] == [
            "hearth = hearth.cli.main:main",
            "hearthd = hearthd.cli.main:main",
        ]
    assert metadata(wheel, "WHEEL")["Root-Is-Purelib"] == "true"


def test_requirements_of_the_wheel_are_met(wheel: Path) -> None:
    """Every requirement is met, as `pip check` tests it for all packages."""
    for text in metadata(wheel, "METADATA").get_all("Requires-Dist", []):
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate({"extra": "server"}):
            assert needed.specifier.contains(importlib.metadata.version(needed.name), prereleases=True), text


# ---- installation ----


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=clean(), timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def output(*command: str | Path, status: int = 0, **more: str) -> str:
    """Runs a command without the variables of this working tree; returns its output."""
    env = {name: value for name, value in clean().items() if not name.startswith("HEARTH_")}
    done = subprocess.run(
        command, capture_output=True, text=True, env={**env, **more}, cwd="/", timeout=100, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_sdist_builds_the_same_wheel(built: Path, wheel: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", tmp_path, sdist)
    (rebuilt,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(rebuilt) as other:
        assert {each.filename: each.CRC for each in other.infolist()} == {
            each.filename: each.CRC for each in one.infolist()
        }


def test_wheel_installs_as_thin_client_and_as_server(wheel: Path, tmp_path: Path) -> None:
    """Each in a fresh environment, with the dependencies of that role only; the client uses the server."""
    thin = installed.make(tmp_path / "thin", "hearth-gpu", project=False)
    server = installed.make(tmp_path / "server", "hearth-gpu[server]", project=False)
    for python in (thin, server):
        pip("--python", python, "install", "--no-deps", "--no-index", "--no-compile", wheel)
        assert output(python.parent / "hearth", "--version").strip() == f"hearth {hearth_proto.VERSION}"
    assert "is not installed" in output(thin.parent / "hearthd", "serve", status=1)
    socket = tmp_path / "hearth.sock"
    flags = ["--unix", str(socket), "--backend", "cpu", "--cpu-count", "1", "--log-level", "error"]
    flags += ["--grpc", "", "--http", "", "--lanes", ""]
    daemon = subprocess.Popen([server.parent / "hearthd", "serve", *flags], env=clean(), cwd="/")
    try:
        code = "import hearth; print(hearth.connect(timeout=60).device(0).asarray([1.0, 2.0]).get().sum())"
        while daemon.poll() is None and not socket.exists():
            time.sleep(0.05)
        assert output(thin, "-c", code, HEARTH_TARGET=f"unix:{socket}") == "3.0\n"
    finally:
        daemon.terminate()
        assert daemon.wait(30) == 0
