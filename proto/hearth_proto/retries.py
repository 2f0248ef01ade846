"""Table of the refusals that can be retried, by reason, for clients of any kind and for the daemon.

The class of a reason determines what a client may do. `RetryInfo` from the daemon means that a retry may succeed after
the time in it. A request that may be repeated unchanged has not begun; without `RetryInfo` it would be refused again.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class Retry(enum.Enum):
    """Possible reaction of a client to a refusal."""

    SAME = "same"
    """No part of the request has run: the daemon has no room or accepts no work, or the tenant has no quota left. The
    request may be repeated unchanged after the time that the refusal names. Without a time, it will be refused
    again."""

    ANEW = "anew"
    """The object of the request is gone (a device process, an array, the session, the bytes in transit), or the request
    may have run in part. It may be issued again if running it twice does no harm."""

    NEVER = "never"
    """The request will be refused again unless it, or the cause of the refusal, is changed."""


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
    "COLLECTIVE_TIMEOUT": Retry.NEVER,  # a rank is missing: the ranks must agree first
    "COMMUNICATOR_FAILED": Retry.NEVER,
    "DEPENDENCY_FAILED": Retry.NEVER,
    "INVALID_ARGUMENT": Retry.NEVER,
    "INVALID_HANDLE": Retry.NEVER,
    "HANDLE_IN_USE": Retry.NEVER,
    "MALFORMED_MESSAGE": Retry.NEVER,
    "MESSAGE_TOO_LARGE": Retry.NEVER,
    "OUT_OF_BOUNDS": Retry.NEVER,
    "OUT_OF_MEMORY": Retry.NEVER,  # the daemon has already freed memory and retried
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
    "OUT_OF_BOUNDS_READ": Retry.NEVER,
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
"""Class of each `hearth_proto.reasons.Reason`, by its name."""


def retry(reason: str) -> Retry:
    """Returns the class of a reason. An unknown reason of a newer daemon is not retried."""
    return RETRIES.get(reason, Retry.NEVER)


def retryable(reason: str, retry_after_s: float | None) -> bool:
    """Returns True if the same request may be repeated after `retry_after_s` seconds and may then succeed.

    None: the daemon named no time.
    """
    return retry_after_s is not None and retry(reason) is Retry.SAME
