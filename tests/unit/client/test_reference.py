"""Every public name has a docstring."""

from __future__ import annotations

import inspect

import hearth


def _members(owner: type) -> list[str]:
    """Returns public functions and properties of a class of Hearth that have no docstring, including inherited ones."""
    return [
        f"{owner.__name__}.{name}"
        for name, value in inspect.getmembers(owner)
        if not name.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property))
        and not (inspect.getdoc(value) or "").strip()
        and (getattr(value, "__module__", None) or "hearth").startswith("hearth")
    ]


def test_everything_public_has_a_docstring() -> None:
    missing = []
    for name in hearth.__all__:
        value = getattr(hearth, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            if not (value.__doc__ or "").strip():
                missing.append(name)
            if inspect.isclass(value):
                missing += _members(value)
    assert not missing
