"""The line of the user's program that a warning names."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from hearth.calling_line import CallingLine


def _module(name: str, source: str) -> dict[str, Any]:
    """Returns the globals of a module of that name, whose source is the file `NAME.py`."""
    namespace = types.ModuleType(name).__dict__
    exec(compile(source, f"{name}.py", "exec"), namespace)
    return namespace


@pytest.fixture
def warn_in_package() -> Callable[[], None]:
    """A function of a module of `hearth` that calls another one, which warns."""
    inner = _module("hearth.inner", "def warn():\n    CallingLine.current().warn('wrong')")
    inner["CallingLine"] = CallingLine
    outer = _module("hearth.outer", "def warn():\n    inner()")
    outer["inner"] = inner["warn"]
    warn: Callable[[], None] = outer["warn"]
    return warn


def test_warning_names_the_line_outside_the_package(warn_in_package: Callable[[], None]) -> None:
    user = _module("training", "def step():\n\n    warn()")
    user["warn"] = warn_in_package
    with pytest.warns(RuntimeWarning, match="wrong") as caught:
        user["step"]()
    assert (caught[0].filename, caught[0].lineno) == ("training.py", 3)


def test_filters_apply_by_module_and_repeat(warn_in_package: Callable[[], None]) -> None:
    user = _module("training", "def step():\n    warn()")
    user["warn"] = warn_in_package
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        user["step"]()
        user["step"]()
        assert len(caught) == 1, "the default filter shows a line's warning once"
        warnings.filterwarnings("ignore", module="training")
        user["__warningregistry__"].clear()
        user["step"]()
        assert len(caught) == 1
        warnings.filterwarnings("error", module="training")
        with pytest.raises(RuntimeWarning, match="wrong"):
            user["step"]()


def test_line_of_the_direct_caller() -> None:
    line = CallingLine.current()
    assert (line.file, line.module) == (__file__, __name__)
