"""Virtual environments that have only chosen packages, as links to the packages of the present environment.

An environment is made in milliseconds, without pip and without a network; the packages that it lacks cannot be
imported, although the present environment has them.
"""

from __future__ import annotations

import os
import re
import venv
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.folders import ROOT

PROJECT = "hearth-gpu"
_INSTALL = re.compile(r"`pip install ([^`]+)`")
_SCRIPT = "#!{python}\nfrom {module} import {attr}\n\nif __name__ == '__main__':\n    raise SystemExit({attr}())\n"
_DAEMON_ONLY = {"server", "cuda12", "cuda13", "cpu"}


def closure(*requirements: str) -> set[str]:
    """Returns the names of the distributions that `pip install REQUIREMENTS` would install."""
    extras_of: dict[str, set[str]] = {}
    pending = [Requirement(text) for text in requirements]
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        if name in extras_of and requirement.extras <= extras_of[name]:
            continue
        extras_of[name] = extras_of.get(name, set()) | requirement.extras
        for text in distribution(name).requires or ():
            needed = Requirement(text)
            extras = extras_of[name] or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                pending.append(needed)
    return set(extras_of)


def make(folder: Path, *requirements: str, project: bool = True) -> Path:
    """Makes an environment with the packages of `closure(*requirements)`, and their commands.

    `hearth-gpu` selects the client in this working tree, and the command `hearth`.

    Args:
        folder: Empty folder for the environment.
        *requirements: Requirements as for pip.
        project: False leaves `hearth-gpu` out, so that a built package can be installed.

    Returns:
        The environment's Python.
    """
    venv.EnvBuilder(symlinks=True).create(folder)
    python = folder / "bin" / "python"
    packages = next(folder.glob("lib/python*/site-packages"))
    for name in closure(*requirements) - (set() if project else {PROJECT}):
        of = distribution(name)
        if name == PROJECT:
            sources = [ROOT / "client" / "hearth", ROOT / "proto" / "hearth_proto"]
        else:
            tops = {file.parts[0] for file in of.files or ()} - {"..", "__pycache__"}
            sources = [Path(str(of.locate_file(top))) for top in tops]
        for source in sources:
            _link(source, packages / source.name)
        for entry in of.entry_points.select(group="console_scripts"):
            if entry.module.split(".")[0] != "hearthd":
                command = folder / "bin" / entry.name
                command.write_text(_SCRIPT.format(python=python, module=entry.module, attr=entry.attr))
                command.chmod(0o755)
    return python


def _link(source: Path, target: Path) -> None:
    """Links a file or folder; a folder that several distributions share, such as `google`, is merged."""
    if not target.exists():
        target.symlink_to(source)
    elif target.resolve() != source.resolve() and source.is_dir():
        entries = list(target.resolve().iterdir())
        if target.is_symlink():
            target.unlink()
            target.mkdir()
        for entry in (*entries, *source.iterdir()):
            _link(entry, target / entry.name)


def requirements_on(page: str) -> list[str]:
    """Returns the requirements of a client's program that a page of the documentation names, the project first."""
    requirements = [PROJECT]
    for command in _INSTALL.findall(page):
        for word in re.sub(r"['\"]", "", command).split():
            of_project = re.fullmatch(r"\.(?:\[([\w,]+)\])?", word)
            if of_project is None:
                requirements.append(word)
            elif of_project[1] and of_project[1] not in _DAEMON_ONLY:
                requirements.append(f"{PROJECT}[{of_project[1]}]")
    return requirements


def alone(environment: dict[str, str], python: Path) -> dict[str, str]:
    """Returns an environment in which `python` and `hearth` are those of `python`'s environment."""
    variables = {name: value for name, value in environment.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**variables, "PATH": f"{python.parent}:{variables.get('PATH', os.defpath)}"}
