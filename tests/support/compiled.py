"""Tests that need the sources of a module instead of its compiled form (`make compiled`)."""

from __future__ import annotations

from types import ModuleType

import pytest


def skip_if_compiled(*modules: ModuleType) -> None:
    """Skips a test that replaces methods of objects of `modules` or traces their lines, unless they are pure."""
    names = [module.__name__ for module in modules if not str(module.__file__).endswith(".py")]
    if names:
        pytest.skip(f"replaces methods or traces lines of compiled modules: {', '.join(names)}")
