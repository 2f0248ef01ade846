"""The Dockerfile: checked by hadolint, compared with the daemon, and rehearsed without a container engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import dockerfile
import pytest
from pathspec import PathSpec

from hearthd.front.addresses import parse_address
from hearthd.front.config.loader import load
from tests.support.folders import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
STEPS = dockerfile.parse_file(str(ROOT / "Dockerfile"))
LAST = STEPS[max(number for number, step in enumerate(STEPS) if step.cmd == "FROM") :]


def one(name: str) -> dockerfile.Command:
    """Returns the only step of the image with this name."""
    (step,) = (step for step in LAST if step.cmd == name)
    return step


def environment() -> dict[str, str]:
    values = one("ENV").value
    return dict(zip(values[::2], values[1::2], strict=True))


def arguments() -> dict[str, str]:
    """Returns the arguments of all stages, with their defaults."""
    pairs = (value.partition("=") for step in STEPS if step.cmd == "ARG" for value in step.value)
    return {name: default for name, _, default in pairs}


def test_hadolint_reports_no_problem() -> None:
    linter = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([linter, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_base_has_a_version() -> None:
    stages = {step.value[2] for step in STEPS if step.cmd == "FROM"}
    bases = {step.value[0] for step in STEPS if step.cmd == "FROM"} - stages
    assert bases == {"${BUILDER}", "${BASE}"}
    for name in ("BUILDER", "BASE"):
        tag = arguments()[name].rpartition(":")[2]
        assert any(character.isdigit() for character in tag) and tag.count(".") == 2, arguments()[name]


def test_extras_and_version_are_those_of_the_project() -> None:
    assert arguments()["EXTRA"] in PROJECT["optional-dependencies"]
    assert arguments()["VERSION"] == PROJECT["version"]
    text = (ROOT / "Dockerfile").read_text()
    for extra in ("cuda12", "cuda13"):
        assert f"EXTRA={extra}" in text and extra in PROJECT["optional-dependencies"]


@pytest.mark.parametrize(("extra", "compiler", "packages"), [("cpu", True, "server"), ("cuda13", False, "cuda13")])
def test_the_cpu_backend_has_the_system_s_compiler(tmp_path: Path, extra: str, compiler: bool, packages: str) -> None:
    """The image must not use ziglang's compiler, which first builds a C++ library.

    The steps run with stub programs that record their arguments.
    """
    steps = [step.value[0] for step in STEPS if step.cmd == "RUN" and "EXTRA" in step.value[0]]
    said = tmp_path / "said"
    for name in ("apt-get", "pip", "rm", "ls"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {said}\necho hearth.whl\n')
        (tmp_path / name).chmod(0o755)
    for step in steps:
        line = step.replace("/opt/hearth/bin/", f"{tmp_path}/")
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "EXTRA": extra}
        subprocess.run(["/bin/sh", "-ec", line], env=path, check=True, capture_output=True)
    lines = said.read_text().splitlines()
    assert ("apt-get install -y --no-install-recommends g++" in lines) == compiler
    assert sum(f"hearth.whl[{packages}]" in line for line in lines) == 1


def test_image_runs_the_daemon_without_root_and_without_a_shell() -> None:
    user, group = one("USER").value[0].split(":")
    assert user == group == "7421"  # numbers, because Kubernetes cannot check whether a name is root
    # no shell, which would receive the signals instead of the daemon
    assert all(one(name).json for name in ("ENTRYPOINT", "CMD", "HEALTHCHECK", "VOLUME"))
    assert one("ENTRYPOINT").value == ("hearthd",) and one("CMD").value == ("serve",)
    assert one("HEALTHCHECK").value == ("CMD", "hearthd", "health")
    assert one("STOPSIGNAL").value == ("SIGTERM",)


def test_settings_and_volumes_are_those_of_the_daemon() -> None:
    config, origins = load(environ=environment())
    assert origins == {("listen", "unix"): "HEARTH_LISTEN_UNIX", ("log", "format"): "HEARTH_LOG_FORMAT"}
    volumes = one("VOLUME").value
    assert str(Path(config.unix_path).parent) in volumes
    assert environment()["CACHE_DIRECTORY"] in volumes and environment()["HOME"] in volumes
    listened = [config.listen.grpc, config.listen.http, config.listen.lanes]
    assert list(one("EXPOSE").value) == [str(parse_address(text).port) for text in listened]


def test_build_context_has_only_the_sources() -> None:
    ignored = PathSpec.from_lines("gitignore", (ROOT / ".dockerignore").read_text().splitlines())
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=False
    )
    if listed.returncode:
        pytest.skip("this is not a git checkout")
    files = listed.stdout.decode().split()
    given = {file for file in files if not ignored.match_file(file)}
    copied = [name for step in STEPS if step.cmd == "COPY" and not step.flags for name in step.value[:-1]]
    assert given == {file for file in files if any(Path(file).is_relative_to(name) for name in copied)}
    assert not any(ignored.match_file(name) for name in copied)
    assert ignored.match_file("server/hearthd/__pycache__/cli.pyc") and ignored.match_file(".venv/bin/python")


@pytest.mark.timeout(400)
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems, which needs root")
def test_rehearsal() -> None:
    """Runs every step of the Dockerfile, and the image's command as process 1 without privileges.

    Covers the health check, a client, the loss of a device, and SIGTERM. deploy/docker/rehearse.py describes the
    substitutes.
    """
    command = [sys.executable, ROOT / "deploy/docker/rehearse.py", "--installed", "--build-arg", "EXTRA=server"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HEARTH_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=390, check=False, env=environ)
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"no overlay can be mounted here: {done.stderr.strip()}")
    if "No matching distribution found" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stdout + done.stderr
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert f"'org.opencontainers.image.version': {json.dumps(PROJECT['version'])}".replace('"', "'") in said["built"]
    assert said["runs"].startswith("hearthd serve: hearthd ready") and "unix=/run/hearth/hearth.sock" in said["runs"]
    assert said["confined"] == "pid=1 uid=7421 gid=7421 CapEff=0000000000000000 NoNewPrivs=1"
    assert said["healthy"] == "hearthd health"
    assert said["client"].endswith("[0. 2. 4. 6.]")
    assert said["lost"].endswith("DEVICE_LOST")
    assert {"reaped", "drained", "done"} <= said.keys()
