"""The programs of docs/examples/coming-from-cupy print the stated output, and differ from CuPy's in their head only."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.daemon.docs.test_coming_from_cupy import ALL
from tests.support.daemon.harness import DaemonProcess, environment
from tests.support.folders import ROOT
from tests.support.installed import alone

FOLDER = ROOT / "docs" / "examples" / "coming-from-cupy"
PROGRAMS = sorted(FOLDER.glob("*.py"))
TIMEOUT_S = 100.0


class Program(NamedTuple):
    """The parts of a program."""

    prints: list[str]
    cupys: str
    """The lines for CuPy, at the place of those for Hearth."""
    rest: str


def read(path: Path) -> Program:
    text = path.read_text()
    found = re.fullmatch(
        r'""".*\nPrints:\n\n(.*?)\n"""\n\n# For CuPy:\n((?:#.*\n)+)# For Hearth:\n'
        r"(.*)# The rest is the same for both.\n(.*)",
        text,
        re.DOTALL,
    )
    assert found, "the program does not have the parts of the other programs"
    prints, cupys, _, rest = found.groups()
    return Program([line.strip() for line in prints.splitlines()], re.sub("^#(     )?", "", cupys, flags=re.M), rest)


def names_of(text: str, module: str) -> set[str]:
    """Returns the names that a text uses from `module`."""
    return {
        node.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == module
    }


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_program(path: Path, daemon: DaemonProcess, reader_python: Callable[[str], Path], tmp_path: Path) -> None:
    if path.stem in ("all_reduce", "peer_copy") and len(daemon.status()["devices"]) < 2:
        pytest.skip("needs two devices")
    python = reader_python("")
    done = subprocess.run(
        [python, path],
        check=False,
        cwd=tmp_path,
        env=alone(environment(HEARTH_TARGET=daemon.unix), python),
        text=True,
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == read(path).prints


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_lines_after_the_head_run_with_cupy(path: Path) -> None:
    program = read(path)
    assert "hearth" not in program.rest.lower()
    ast.parse(program.cupys)
    same = {name.partition("(")[0] for row in ALL if row.status == "same" for name in row.names}
    assert names_of(program.rest, "cp") <= same
    assigned = {node.id for node in ast.walk(ast.parse(program.rest)) if isinstance(node, ast.Name)}
    used = assigned & {"cp", "on", "Stream", "Event", "get_elapsed_time", "symbol", "all_reduce", "np"}
    assert all(re.search(rf"\b{name}\b", program.cupys) for name in used)


def test_there_are_ten_programs() -> None:
    assert len(PROGRAMS) >= 10
    page = (ROOT / "docs" / "coming-from-cupy.md").read_text()
    assert set(re.findall(r"\(examples/coming-from-cupy/(\w+)\.py\)", page)) == {path.stem for path in PROGRAMS}
