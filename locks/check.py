"""Compares the lock files with the ranges of `pyproject.toml`, without the network: `make lint` runs it.

Each requirement of the project has a locked version that its range allows, each locked package has hashes, no package
has two versions, and `oldest.txt` has the lower end of each range that the running program depends on.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

HERE = Path(__file__).resolve().parent
FILES = {
    "server": ("server",), "dev": ("server", "dev"), "docs": ("server", "dev", "docs"), "cpu": ("server", "cpu"),
    "cuda12": ("server", "cuda12"), "cuda13": ("server", "cuda13"),
}  # fmt: skip
"""Extras, and the lock files that hold their requirements together."""
RUNNING = ("server", "otel")
"""Extras of programs that run, whose lower ends `oldest.txt` has."""

Locked = dict[str, list[Version]]


def locked(file: str, folder: Path = HERE) -> tuple[Locked, list[str]]:
    """The versions of each package, several where markers choose, and the packages without hashes."""
    found: Locked = {}
    bare = []
    for block in re.split(r"^(?=[A-Za-z0-9])", (folder / f"{file}.txt").read_text(), flags=re.MULTILINE):
        if match := re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", block):
            found.setdefault(canonicalize_name(match[1]), []).append(Version(match[2]))
            if "--hash=sha256:" not in block:
                bare.append(match[1])
    return found, bare


def requirements(project: dict[str, object], extra: str) -> list[Requirement]:
    """Those of the project itself and of an extra, with those of the extras that it names."""
    texts = [*project["dependencies"], *project["optional-dependencies"][extra]]  # type: ignore[misc, index]
    found = []
    for each in map(Requirement, texts):
        if each.name == project["name"]:
            found += [one for inner in sorted(each.extras) for one in requirements(project, inner)]
        else:
            found.append(each)
    return found


def problems(project: dict[str, object], folder: Path = HERE) -> list[str]:
    """Returns a line for each problem of the lock files in `folder`."""
    said = []
    tables = {file: locked(file, folder) for file in FILES}
    for file, (versions, bare) in tables.items():
        said += [f"{file}.txt: {name} has no hash" for name in bare]
        if file != "server":
            server = tables["server"][0]
            differ = [name for name in versions.keys() & server.keys() if versions[name] != server[name]]
            said += [f"{file}.txt: {name} has another version than in server.txt" for name in differ]
    for extra, files in FILES.items():
        together = {name: versions for file in files for name, versions in tables[file][0].items()}
        for each in requirements(project, extra):
            versions = together.get(canonicalize_name(each.name), [])
            if not any(each.specifier.contains(version, prereleases=True) for version in versions):
                found = ", ".join(map(str, versions)) or "missing"
                said.append(f"{extra}: {each} is not met by {' and '.join(files)}: {found}")
    oldest, _ = locked("oldest", folder)
    for extra in RUNNING:
        for each in requirements(project, extra):
            (lower,) = (Version(one.version).release for one in each.specifier if one.operator == ">=")
            found = oldest.get(canonicalize_name(each.name), [])
            if not any(version.release[: len(lower)] == lower for version in found):
                said.append(
                    f"oldest.txt: {each.name} is {', '.join(map(str, found)) or 'missing'}, not {each.specifier}"
                )
    return said


def main() -> int:
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    said = sorted(set(problems(project)))
    for line in said:
        print(f"locks: {line}", file=sys.stderr)
    if said:
        print("locks: `make lock` writes them anew", file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    raise SystemExit(main())
