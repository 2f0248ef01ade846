"""Checks that the conformance table names tests that exist, and gives a reason in each row without a test."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TABLE = TESTS / "CONFORMANCE.md"
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
REASON = re.compile(r"^(does not apply|issue \d+): \S.{8,}")
BACKENDS = ("both", "GPU only", "CPU only", "pure")


def rows() -> list[tuple[str, str, str]]:
    """Returns (item, test, backend) of every row; a `|` inside a cell is escaped."""
    found = []
    for line in TABLE.read_text().splitlines():
        if line.startswith("|") and not line.startswith(("| item |", "|---")):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            assert len(cells) == 3, f"a row has three cells: {line}"
            found.append((cells[0], cells[1], cells[2]))
    return found


@cache
def functions(path: str) -> frozenset[str]:
    """Returns the names of the test functions in a file, which is parsed and not imported."""
    tree = ast.parse((TESTS / path).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize(("item", "test", "backend"), rows(), ids=lambda cell: cell[:60])
def test_row_names_existing_tests_or_states_a_reason(item: str, test: str, backend: str) -> None:
    named = NAMED.findall(test)
    assert item
    assert "TODO" not in test
    for path, name in named:
        assert (TESTS / path).is_file(), f"{item}: there is no {path}"
        assert name.startswith("test_") and name in functions(path), f"{item}: {path} has no {name}"
    assert len(named) == test.count("::"), f"{item}: a test has a name in an unknown format: {test}"
    if named:
        assert backend and set(backend.split(", ")) <= set(BACKENDS), f"{item}: {backend!r}"
    else:
        assert REASON.match(test) and not backend, f"{item} has neither a test nor a reason: {test!r}"


@pytest.mark.parametrize("file", ["slow.txt", "long.txt"])
def test_lists_of_tests_name_existing_tests(file: str) -> None:
    for line in (TESTS / file).read_text().splitlines():
        path, *names = line.split("::")
        existing = functions(path.removeprefix("tests/"))
        assert not names or names[-1] in existing or names[-1] == "runTest", line


def test_every_section_of_the_inventories_exists() -> None:
    headings = [line[3:].split(":")[0] for line in TABLE.read_text().splitlines() if line.startswith("## ")]
    wanted = [f"CubeCL 1.{part}" for part in range(1, 13)]
    wanted += ["CubeCL 2", "CubeCL 3.2", "CubeCL 3.3", *(f"CubeCL 5.{part}" for part in range(1, 10))]
    wanted += [f"vyre 1.{part}" for part in range(1, 7)] + ["vyre 3.1", "vyre 3.2"]
    wanted += [f"vyre 4.{part}" for part in range(1, 10)]
    assert headings == [*wanted, "Beyond the inventories"]
    hazards = [item.split()[0] for item, _, _ in rows()]
    assert {f"V{number}" for number in range(1, 20)} | {f"S{number}" for number in range(1, 13)} <= set(hazards)
    assert len(rows()) > 350
