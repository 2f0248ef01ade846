"""No module imports another one in a circle, with the imports for annotations and those in functions.

The import contracts of pyproject.toml order the packages; this order is within the packages, too.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.support.folders import ROOT
from tests.support.import_graph import Import, circles, imports_of

PACKAGES = {
    "hearth": ROOT / "client" / "hearth",
    "hearthd": ROOT / "server" / "hearthd",
    "hearth_proto": ROOT / "proto" / "hearth_proto",
}

_DEVICE = "x.device is the class whose methods make x: types that refer to each other cannot be in an order"
_NODE = "gpu.node is the class whose methods return gpu: types that refer to each other cannot be in an order"
PARENT_LINKS = {
    ("hearth.blocking.array", "hearth.blocking.device"): _DEVICE,
    ("hearth.blocking.device", "hearth.blocking.node"): _NODE,
    ("hearth.aio.array", "hearth.aio.device"): _DEVICE,
    ("hearth.aio.device", "hearth.aio.node"): _NODE,
}
"""Imports that close a circle, each with its reason: annotations that the type checkers of users need. A `Protocol`
instead would repeat the interface of devices and nodes, and a type parameter would appear in users' annotations."""


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return imports_of(PACKAGES)


def test_no_module_is_in_a_circle_of_imports(imports: list[Import]) -> None:
    found = circles(each for each in imports if each[:2] not in PARENT_LINKS)
    assert not found, "\n\n".join("circle of imports:\n" + "\n".join(map(str, circle)) for circle in found)


@pytest.mark.parametrize("link", PARENT_LINKS, ids=" -> ".join)
def test_parent_link_is_an_annotation_and_closes_a_circle(imports: list[Import], link: tuple[str, str]) -> None:
    places = [each for each in imports if each[:2] == link]
    assert places, f"{' -> '.join(link)} is no longer an import: remove it from PARENT_LINKS"
    assert all(each.annotation_only for each in places), f"not only an annotation: {', '.join(map(str, places))}"
    downward = [each for each in imports if each[:2] not in PARENT_LINKS]
    assert circles([*downward, *places]), f"{' -> '.join(link)} closes no circle: remove it from PARENT_LINKS"


def test_every_module_to_compile_exists() -> None:
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    compiled = targets["wheel"]["hooks"]["custom"]["compiled"]
    modules = [PACKAGES[package] / f"{name.replace('.', '/')}.py" for package in compiled for name in compiled[package]]
    assert len(modules) > 40 and not [str(path) for path in modules if not path.is_file()]


# ---- the graph of the imports ----


def graph_of(folder: Path, **sources: str) -> list[Import]:
    """Returns the imports of a package `p` with these modules."""
    for name, source in {"__init__": "", **sources}.items():
        (folder / f"{name}.py").write_text(source)
    return imports_of({"p": folder})


@pytest.mark.parametrize(
    ("source", "annotation_only"),
    [
        ("import p.b", False),
        ("from p import b", False),
        ("from p.b import name", False),
        ("from . import b", False),
        ("from .b import name", False),
        ("def f():\n    import p.b", False),
        ("if TYPE_CHECKING:\n    from p.b import Name", True),
        ("if typing.TYPE_CHECKING:\n    import p.b", True),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import p.b", False),
    ],
)
def test_every_form_of_import_counts(tmp_path: Path, source: str, annotation_only: bool) -> None:
    found = graph_of(tmp_path, a=f"import typing\n{source}\n", b="")
    line = source.count("\n") + 2
    assert found == [Import("p.a", "p.b", tmp_path / "a.py", line, annotation_only)]


def test_circle_has_the_imports_between_its_modules(tmp_path: Path) -> None:
    one = {"a": "import p.b", "b": "def f():\n    from p import c", "c": "if TYPE_CHECKING:\n    from p.a import A"}
    other = {"x": "import p.y, p.a", "y": "import p.x"}
    found = circles(graph_of(tmp_path, above="import p.a, p.z", z="import os", **one, **other))
    assert [[each[:2] for each in circle] for circle in found] == [
        [("p.a", "p.b"), ("p.b", "p.c"), ("p.c", "p.a")],
        [("p.x", "p.y"), ("p.y", "p.x")],
    ]


def test_chain_of_imports_is_no_circle(tmp_path: Path) -> None:
    assert not circles(graph_of(tmp_path, a="import p.b, p.c", b="import p.c", c="import p"))
