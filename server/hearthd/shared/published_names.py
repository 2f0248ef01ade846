"""Names under which arrays and events are published, and tenants that an array is granted to. Shared code."""

from __future__ import annotations

from hearth_proto.reasons import Reason, Refusal

MAX_NAME = 200
"""Largest number of characters of a name."""


def check_name(name: str, subject: str, field: str = "name") -> None:
    """Checks that a name is neither empty nor too long, and can be printed.

    Args:
        name: The name.
        subject: What has the name, for the error: ``"a published event"``.
        field: Field of the request that contains the name.

    Raises:
        Refusal: The name is invalid (reason INVALID_ARGUMENT).
    """
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        displayed = name if len(name) <= MAX_NAME else f"{name[:20]}... ({len(name)} characters)"
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"{displayed!r} is not a valid name of {subject}",
            fix=f"use 1 to {MAX_NAME} characters, none of them a control character",
            fields=[field],
        )
