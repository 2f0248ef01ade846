"""Names under which arrays and events are published, and tenants that an array is granted to. Shared code."""

from __future__ import annotations

from hearth_proto.reasons import Reason, Refusal

MAX_NAME = 200
"""Most characters of a name."""


def check_name(name: str, subject: str, field: str = "name") -> None:
    """Raises Refusal(INVALID_ARGUMENT) for a name that is empty, too long or cannot be printed.

    `subject` is what has the name. `field` is the field of the request that holds the name.
    """
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        displayed = name if len(name) <= MAX_NAME else f"{name[:20]}... ({len(name)} characters)"
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"{displayed!r} is not a valid name of {subject}",
            fix=f"use 1 to {MAX_NAME} characters, none of them a control character",
            fields=[field],
        )
