"""Imports between the modules of packages, and their circles, as the sources state them.

Every import statement counts: at the top of a module, below ``if TYPE_CHECKING`` and in a function. Covers neither
`importlib.import_module` nor the packages that Python initializes on the way to a module.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Import(NamedTuple):
    """One import of one module by another one of the same packages."""

    importer: str
    imported: str
    path: Path
    """Source file of the importer."""
    line: int
    annotation_only: bool
    """True below ``if TYPE_CHECKING``: the program does not import the module when it runs."""

    def __str__(self) -> str:
        return f"{self.importer} -> {self.imported} ({self.path}:{self.line})"


def imports_of(packages: Mapping[str, Path]) -> list[Import]:
    """Lists all imports between the modules of packages.

    Args:
        packages: Folder of each top-level package, by its name.
    """
    modules = {}
    for package, folder in packages.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            modules[".".join((package, *parts)).removesuffix(".__init__")] = path
    return [each for module, path in modules.items() for each in _imports_in(module, path, modules)]


def circles(imports: Iterable[Import]) -> list[list[Import]]:
    """Returns the imports of each circle: of each set of modules that all import each other, directly or not."""
    imports = list(imports)
    imported = defaultdict(set)
    for each in imports:
        imported[each.importer].add(each.imported)
    reached = {module: _reachable(module, imported) for module in list(imported)}
    groups = {frozenset(other for other in reached[module] if module in reached.get(other, ())) for module in reached}
    return [
        [each for each in imports if {each.importer, each.imported} <= group]
        for group in sorted(groups - {frozenset()}, key=min)
    ]


def _imports_in(module: str, path: Path, modules: Mapping[str, Path]) -> Iterator[Import]:
    tree = ast.parse(path.read_text(), path)
    annotations = {
        node
        for guard in ast.walk(tree)
        if isinstance(guard, ast.If) and ast.unparse(guard.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for statement in guard.body
        for node in ast.walk(statement)
    }
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in _names(node, package):
                imported = next((each for each in (name, name.rpartition(".")[0]) if each in modules), None)
                if imported is not None and imported != module:
                    yield Import(module, imported, path, node.lineno, node in annotations)


def _names(node: ast.Import | ast.ImportFrom, package: str) -> Sequence[str]:
    """Returns the full names that a statement imports: modules, or names in modules."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    source = node.module or ""
    if node.level:
        parent = package.split(".")
        source = ".".join([*parent[: len(parent) - node.level + 1], *filter(None, (node.module,))])
    return [f"{source}.{alias.name}" for alias in node.names]


def _reachable(start: str, imported: Mapping[str, set[str]]) -> set[str]:
    """Returns the modules that `start` imports, directly or not; `start` itself only if it is in a circle."""
    reached: set[str] = set()
    ahead = list(imported[start])
    while ahead:
        module = ahead.pop()
        if module not in reached:
            reached.add(module)
            ahead += imported.get(module, ())
    return reached
