"""The lock files agree with the ranges of `pyproject.toml`, and a disagreement is reported."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.folders import ROOT


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("locks_check", ROOT / "locks" / "check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_every_requirement_is_locked(check: ModuleType, project: dict[str, Any]) -> None:
    assert check.problems(project) == []


def test_requirement_that_is_not_locked_is_reported(check: ModuleType, project: dict[str, Any]) -> None:
    project["dependencies"].append("a-new-one>=1")
    project["dependencies"][0] = "grpcio>=99"
    told = "\n".join(check.problems(project))
    assert "server: a-new-one>=1 is not met by server: missing" in told and "grpcio>=99 is not met" in told


def test_package_without_hashes_is_reported(check: ModuleType, project: dict[str, Any], tmp_path: Path) -> None:
    for file in (*check.FILES, "oldest"):
        text = (ROOT / "locks" / f"{file}.txt").read_text()
        (tmp_path / f"{file}.txt").write_text(text + ("bare==1.0\n" if file == "dev" else ""))
    assert check.problems(project, tmp_path) == ["dev.txt: bare has no hash"]


def test_bills_of_materials_list_each_locked_package(check: ModuleType) -> None:
    if not (ROOT / ".venv-tools" / "bin" / "cyclonedx-py").exists():
        pytest.skip("cyclonedx-py is not installed (`make sbom` installs it)")
    command = ["make", "-s", "-o", ".venv-tools/.tools", "sbom", "SBOM_FLAGS=--no-validate"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100)
    for extra in ("cpu", "cuda12", "cuda13"):
        made = json.loads((ROOT / "build" / "sbom" / f"{extra}.cdx.json").read_text())
        assert made["bomFormat"] == "CycloneDX" and made["metadata"]["component"]["name"] == "hearth-gpu"
        found = {(canonicalize_name(each["name"]), Version(each["version"])) for each in made["components"]}
        locked = [check.locked(file)[0] for file in ("server", extra)]
        assert found == {(name, one) for table in locked for name, versions in table.items() for one in versions}
        assert all(each["externalReferences"][0]["hashes"] for each in made["components"])
