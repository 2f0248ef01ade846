"""Refusals that can be retried: one table for every reason, for clients of any kind and for the daemon.

A reason's class says what a client may do; whether it helps at that moment the daemon says with `RetryInfo`. What can
be asked again as it is has not begun, and is worth asking again only where the daemon says when.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class Retry(enum.Enum):
    """A client's possible reaction to a refusal."""

    SAME = "same"
    """No part of the request has run, for want of room, of quota, or of a daemon that accepts work: it may be repeated
    unchanged after the time that the refusal names. Without a time, it will be refused again."""

    ANEW = "anew"
    """The object of the request is gone (a device process, an array, the session, the bytes under way), or the request
    may have run in part: it may be made anew where running it twice does no harm."""

    NEVER = "never"
    """The request will be refused again: something has to be changed."""


RETRIES: Mapping[str, Retry] = {
    "QUEUE_FULL": Retry.SAME,
    "QUOTA_EXCEEDED": Retry.SAME,
    "SESSION_LIMIT": Retry.SAME,
    "DRAINING": Retry.SAME,
    "DEVICE_UNAVAILABLE": Retry.SAME,
    "DISK_FULL": Retry.SAME,
    "OVERLOADED": Retry.SAME,
    "DEVICE_LOST": Retry.ANEW,
    "BUFFER_LOST": Retry.ANEW,
    "SESSION_EXPIRED": Retry.ANEW,
    "TRANSFER_ABORTED": Retry.ANEW,
    "COLLECTIVE_TIMEOUT": Retry.NEVER,  # a rank did not come: the ranks have to agree first
    "COMMUNICATOR_FAILED": Retry.NEVER,
    "DEPENDENCY_FAILED": Retry.NEVER,
    "INVALID_ARGUMENT": Retry.NEVER,
    "INVALID_HANDLE": Retry.NEVER,
    "HANDLE_IN_USE": Retry.NEVER,
    "MALFORMED_MESSAGE": Retry.NEVER,
    "MESSAGE_TOO_LARGE": Retry.NEVER,
    "OUT_OF_BOUNDS": Retry.NEVER,
    "OUT_OF_MEMORY": Retry.NEVER,  # the daemon has cleaned up and tried again by itself
    "ALLOCATION_FAILED": Retry.NEVER,
    "COMPILE_FAILED": Retry.NEVER,
    "COMPILE_LIMIT": Retry.NEVER,
    "NO_COMPILER": Retry.NEVER,
    "FUNCTION_NOT_FOUND": Retry.NEVER,
    "GLOBAL_NOT_FOUND": Retry.NEVER,
    "MODULE_INVALID": Retry.NEVER,
    "LAUNCH_INVALID": Retry.NEVER,
    "LAUNCH_FAILED": Retry.NEVER,
    "RESIDENCY_EXCEEDED": Retry.NEVER,
    "OUT_OF_BOUNDS_WRITE": Retry.NEVER,
    "TENSOR_MAP_INVALID": Retry.NEVER,
    "CAPTURE_INVALID": Retry.NEVER,
    "DEVICE_NOT_FOUND": Retry.NEVER,
    "PROFILE_INVALID": Retry.NEVER,
    "COLLECTIVE_MISMATCH": Retry.NEVER,
    "VERSION_UNSUPPORTED": Retry.NEVER,
    "UNAUTHENTICATED": Retry.NEVER,
    "PERMISSION_DENIED": Retry.NEVER,
    "UNSUPPORTED": Retry.NEVER,
    "CANCELLED": Retry.NEVER,
    "INTERNAL": Retry.NEVER,
    "DEADLINE_EXCEEDED": Retry.NEVER,  # the work continues
    "SESSION_BARRED": Retry.NEVER,
    "NOT_PUBLISHED": Retry.NEVER,
    "NAME_IN_USE": Retry.NEVER,
    "READ_ONLY": Retry.NEVER,
    "DATA_RACE": Retry.NEVER,
}
"""Classes by the name of each `hearth_proto.reasons.Reason`."""


def retry(reason: str) -> Retry:
    """The class of a reason; a newer daemon's, unknown here, is not asked again."""
    return RETRIES.get(reason, Retry.NEVER)


def retryable(reason: str, retry_after_s: float | None) -> bool:
    """Returns True if the same request may be sent again after `retry_after_s` seconds (None: the daemon named none),
    and help."""
    return retry_after_s is not None and retry(reason) is Retry.SAME
