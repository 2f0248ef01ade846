"""Messages: each reason is raised with a fix, and no message of the product uses retired words or idioms."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from hearth_proto.reasons import Reason

ROOT = Path(__file__).parents[2]
PACKAGES = ("client/hearth", "server/hearthd", "proto/hearth_proto")

RETIRED = re.compile(
    r"\b(nobody|somebody|whoever|who waits|is told|are told|looked after|in one go|of its own|so many|the books"
    r"|goes on|comes to its end|long way|straight through)\b",
    re.IGNORECASE,
)
"""Words of earlier texts that the language rules replaced."""

IDIOMS = re.compile(
    r"\b(hung up|without a word|changed hands|none of its business|everybody|anybody|good no more|not known here"
    r"|went on|given up|gave (it|up)|has no way to|told to go|at rest|is asked for|was asked for"
    r"|were asked for|the most is|made anew|look at)\b",
    re.IGNORECASE,
)
"""Idioms that a reader of a message may not understand."""

NOT_MESSAGES = re.compile(r"#include|__global__|import \w+\n")
"""Source code in a literal."""


def _modules(package: str) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        if "_pb2" not in path.name:
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def _trees() -> dict[str, list[tuple[str, ast.Module]]]:
    return {package: list(_modules(package)) for package in PACKAGES}


def _literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the line and text of each string literal that is not a docstring; placeholders become "{}"."""
    skipped = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            skipped |= {id(each.value) for each in body if isinstance(each, ast.Expr)}
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(each) for each in node.values}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = (str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values)
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def _reasons(call: ast.Call) -> set[str]:
    """Returns the names of the reasons in the arguments of a call."""
    found = set()
    for argument in [*call.args, *(each.value for each in call.keywords)]:
        for node in ast.walk(argument):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Reason":
                found.add(node.attr)
    return found


def _has_fix(call: ast.Call) -> bool:
    """Returns whether a call has a message in addition to the reason, and a fix."""
    return len(call.args) >= 2 and any(each.arg == "fix" for each in call.keywords)


def _raised() -> dict[str, list[str]]:
    """Returns the places of calls with a reason, a message and a fix, by the name of the reason."""
    places: dict[str, list[str]] = defaultdict(list)
    for modules in _trees().values():
        for path, tree in modules:
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and _has_fix(node):
                    for reason in _reasons(node):
                        places[reason].append(f"{path}:{node.lineno}")
    return places


@functools.cache
def _texts(package: str) -> list[tuple[str, str]]:
    """Returns the place and text of each literal of several words in a package."""
    return [
        (f"{path}:{line}", text)
        for path, tree in _trees()[package]
        for line, text in _literals(tree)
        if " " in text.strip() and not NOT_MESSAGES.search(text)
    ]


def _unclear(package: str, pattern: re.Pattern[str]) -> dict[str, str]:
    """Returns each text of a package that contains a word of the pattern, by its place."""
    return {place: text for place, text in _texts(package) if pattern.search(text)}


def test_each_reason_is_raised_with_a_message_and_a_fix() -> None:
    raised = _raised()
    assert not [reason.name for reason in Reason if not raised[reason.name]]


@pytest.mark.parametrize("package", PACKAGES)
def test_messages_are_free_of_retired_words(package: str) -> None:
    assert _unclear(package, RETIRED) == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_messages_are_free_of_idioms(package: str) -> None:
    found = _unclear(package, IDIOMS)
    assert found == {}


def test_patterns_find_their_examples() -> None:
    tree = ast.parse('"""nobody"""\nraise E(f"{x} hung up", fix="ask whoever has it")\n')
    texts = [text for _, text in _literals(tree)]
    assert texts == ["{} hung up", "ask whoever has it"]
    assert IDIOMS.search(texts[0]) and RETIRED.search(texts[1])
