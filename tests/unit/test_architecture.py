"""Checks that docs/architecture.md and CONTRIBUTING.md name files, folders, classes and functions that exist, and that
they name every package.

A name in backticks directly after a link to a file, or a comma-separated list of such names, must be defined in that
file.
"""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.support.folders import ROOT

ARCHITECTURE = ROOT / "docs" / "architecture.md"
PAGES = (ARCHITECTURE, ROOT / "CONTRIBUTING.md")
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)((?:\s+`[\w.]+`(?:,\s+`[\w.]+`)*)?)")
STEP = re.compile(r"^\d+\. ", re.MULTILINE)
TABLES = {
    "client/hearth": ("### client/hearth", "The client"),
    "server/hearthd/front": ("### server/hearthd/front", "The front"),
    "server/hearthd/device": ("### server/hearthd/device", "The device process"),
    "server/hearthd": ("The packages of [server/hearthd]", "The daemon"),
}
"""Start of the table of each folder, and the import contract that lists its packages from top to bottom."""


def links(page: Path) -> list[tuple[str, Path, list[str]]]:
    """Returns (text, target, names after the link) of each link to a file of the repository."""
    found = LINK.findall(page.read_text())
    return [(text, (page.parent / to).resolve(), re.findall(r"`(.+?)`", names)) for text, to, names in found]


@cache
def defined(path: Path) -> frozenset[str]:
    """Returns the names that a Python file defines; names inside a class are prefixed with the class."""
    names = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    collect(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    collect(ast.parse(path.read_text()).body, "")
    return frozenset(names)


def layers(contract: str) -> list[str]:
    """Returns the packages of a contract, from top to bottom."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    found = next(each for each in contracts if each["name"] == contract)
    return [name.strip().removeprefix("hearthd.") for layer in found["layers"] for name in layer.split("|")]


def rows(heading: str) -> list[tuple[str, str]]:
    """Returns (text, target) of the links in the first column of the first table after `heading`."""
    rest = ARCHITECTURE.read_text().partition(f"\n{heading}")[2]
    table = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    assert table is not None, heading
    return re.findall(r"^\| \[([^\]]+)\]\(\.\./([^)]+)\) \|", table.group(), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_or_folder_of_that_name(page: Path) -> None:
    assert len(links(page)) > 20
    for text, target, _ in links(page):
        assert target.exists(), f"{page.name}: there is no {target}"
        if target.suffix == ".py" or target.is_dir():
            assert str(target).endswith(f"/{text}"), f"{page.name}: [{text}] leads to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_after_a_link_is_in_that_file(page: Path) -> None:
    named = [(target, name) for _, target, names in links(page) for name in names]
    assert len(named) > 8
    for target, name in named:
        assert target.is_file(), f"{page.name}: {name} is listed for {target}, which is no file"
        if target.suffix == ".py":
            assert name in defined(target), f"{page.name}: {target.relative_to(ROOT)} has no {name}"
        else:
            assert re.search(rf"\b{re.escape(name)}\b", target.read_text()), f"{page.name}: {target} has no {name}"


def test_every_step_of_a_walk_links_to_a_file() -> None:
    walks = ARCHITECTURE.read_text().partition("\n## Walks\n")[2].partition("\n## ")[0]
    steps = [line for line in walks.splitlines() if STEP.match(line)]
    assert len(steps) > 60
    for step in steps:
        assert re.match(r"\d+\. \[[\w/.]+\.py\]\(", step), step


@pytest.mark.parametrize("folder", TABLES)
def test_the_tables_have_the_packages_of_the_contracts_in_their_order(folder: str) -> None:
    heading, contract = TABLES[folder]
    found = rows(heading)
    assert [text.removesuffix(".py") for text, _ in found] == layers(contract)
    assert [target for _, target in found] == [f"{folder}/{text}" for text, _ in found]
