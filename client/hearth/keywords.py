"""Errors of misspelt keywords: they name the call and the likely keyword.

Public methods that take a ``**unknown`` parameter raise them. A type checker also reports the keyword, because no value
has the parameter's type, `Never`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hearth.errors import DtypeError, HearthError


def unknown_keyword(
    call: str,
    unknown: Iterable[str],
    function: Callable[..., Any],
    kind: type[HearthError] = DtypeError,
    reason: str = "INVALID_ARGUMENT",
) -> HearthError:
    """Builds the error of a call with a keyword that `function` does not have.

    Args:
        call: The call as its user knows it, e.g. ``launch of saxpy``.
        unknown: The keywords; the error names the first.
        function: The function that was called.
        kind: Class of the error, a `TypeError`.
        reason: The error's reason.
    """
    name = next(iter(unknown))
    accepted = names(function)
    return kind(
        f"{call}: there is no keyword {name}{suggestion(name, accepted)}",
        reason=reason,
        fix=f"use these keywords: {', '.join(accepted)}." if accepted else "call it without keywords.",
        details={"keyword": name},
    )


def names(function: Callable[..., Any]) -> list[str]:
    """Returns the names of a function's optional parameters, in the order of its signature."""
    import inspect

    parameters: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
    return [name for name, parameter in parameters.items() if parameter.default is not parameter.empty]


def suggestion(name: str, accepted: Iterable[str]) -> str:
    """Returns the end of the sentence that names an unknown keyword: a question with the closest one, or a full stop.

    Args:
        name: The unknown keyword.
        accepted: The keywords that are accepted.
    """
    close = closest(name, accepted)
    return f"; did you mean {close}?" if close else "."


def closest(name: str, candidates: Iterable[str]) -> str:
    """Returns the most similar of the known names; an empty string if no name is similar.

    Args:
        name: The name to compare.
        candidates: The known names.
    """
    import difflib

    return next(iter(difflib.get_close_matches(name, list(candidates), 1)), "")
