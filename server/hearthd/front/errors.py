"""Refusals as statuses of gRPC calls, and refusals that several modules use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NoReturn

import grpc
import grpc.aio

from hearth_proto.reasons import STATUS_DETAILS_KEY, Reason, Refusal, explained, from_status, stream_failures
from hearth_proto.v1 import status_pb2

Context = grpc.aio.ServicerContext[Any, Any]

_GRPC_CODES = {code.value[0]: code for code in grpc.StatusCode}

MAX_MESSAGE = 1024
MAX_DETAILS = 3072
"""Limits, in bytes, of a status in trailing metadata, because gRPC peers drop calls whose trailing metadata exceed 8
KiB (text is percent-encoded, details are base64-encoded). The message includes the reason and the fix. A longer status,
for instance with a compiler's log, is truncated. On the Execute stream a status is a message, and is sent whole."""
_EXPLANATION_CHARS = 64
"""Maximum number of characters that `explained` adds to a message and its fix: the reason and punctuation."""


async def abort(context: Context, status: status_pb2.Status) -> NoReturn:
    """Ends the call with `status`; its details are sent in the trailing metadata.

    The message of a gRPC call contains the reason and the fix as well, for tools that show only code and message. The
    client at the other end of a framed call reads the details.
    """
    status = fitted(status)
    if not getattr(context, "framed", False):
        status = explained(status)
    code = _GRPC_CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    if code is grpc.StatusCode.OK:  # a failed command without a code; success must not be reported
        code = grpc.StatusCode.INTERNAL
    try:
        await context.abort(code, status.message, ((STATUS_DETAILS_KEY, status.SerializeToString()),))
    except grpc.aio.InternalError:
        # gRPC has already begun to end the call: the client has disconnected, and would not receive the status.
        raise asyncio.CancelledError from None
    finally:
        # The call keeps the error that it raises, and the error refers to this frame; the call must not keep itself
        # alive.
        del context


def fitted(status: status_pb2.Status) -> status_pb2.Status:
    """Returns `status`, truncated to fit the trailing metadata.

    The fix and the message are truncated first, then the longest values. Then the invalid fields and the later failures
    of a stream are left out.
    """
    if _fits(status):
        return status
    refusal = from_status(status)
    failures = stream_failures(status)
    refusal.fix = _truncated(refusal.fix, MAX_MESSAGE // 2)
    refusal.message = _truncated(refusal.message, MAX_MESSAGE - len(refusal.fix) - _EXPLANATION_CHARS)
    max_bytes = max(256, MAX_DETAILS // (4 if failures else 1))
    while sum(len(key) + len(value) for key, value in refusal.details.items()) + len(refusal.fix) > max_bytes:
        if len(refusal.fix) > max_bytes // 2:
            refusal.fix = _truncated(refusal.fix, max_bytes // 2)
            continue
        longest = max(refusal.details, key=lambda key: len(refusal.details[key]))
        value = refusal.details[longest]
        if len(value) <= 16:
            refusal.details.clear()
        else:
            refusal.details[longest] = _truncated(value, len(value) // 2)
    for failure in failures:
        failure.status.CopyFrom(fitted_message(failure.status))
    shortened = refusal.to_status(failures)
    while (failures or refusal.fields) and not _fits(shortened):
        if refusal.fields:
            refusal.fields = ()
        else:
            failures.pop()
        shortened = refusal.to_status(failures)
    shortened.code = status.code
    return shortened


def _fits(status: status_pb2.Status) -> bool:
    """Returns whether `status` fits the trailing metadata, with the reason and the fix in its message."""
    complete = explained(status)
    return len(complete.message) <= MAX_MESSAGE and complete.ByteSize() <= MAX_MESSAGE + MAX_DETAILS


def fitted_message(status: status_pb2.Status) -> status_pb2.Status:
    """Returns `status` with its message truncated, and without long details."""
    shortened = status_pb2.Status(code=status.code, message=_truncated(status.message, 256))
    shortened.details.extend(detail for detail in status.details if len(detail.value) <= 512)
    return shortened


def _truncated(text: str, length: int) -> str:
    return text if len(text) <= length else text[: max(0, length - 8)] + " ... cut"


def session_expired() -> Refusal:
    """Returns the refusal of a session token that belongs to no open session."""
    return Refusal(
        Reason.SESSION_EXPIRED,
        "The session token belongs to no open session: unknown or expired session.",
        fix="Open a new session with NodeService.OpenSession; a session ends when it is closed or is disconnected "
        "for longer than its lease.",
    )


def session_not_found(session_id: str) -> Refusal:
    """Returns the refusal of a session's public id.

    The message is the same if the session belongs to another tenant or does not exist.
    """
    return Refusal(
        Reason.INVALID_HANDLE,
        f"There is no session {session_id[:64]!r} here.",
        fix="Use the id of a session that is open: `hearth sessions`, node.sessions(), NodeService.ListSessions.",
        details={"requested": session_id[:64]},
    )


def device_not_found(ordinal: int, ordinals: Iterable[int]) -> Refusal:
    """Returns the refusal of an unknown device. `ordinals`: the devices that the message lists."""
    available = ", ".join(map(str, ordinals)) or "none"
    return Refusal(
        Reason.DEVICE_NOT_FOUND,
        f"Device {ordinal} was requested; this node has devices: {available}.",
        fix="Use an ordinal that NodeService.Describe lists.",
        details={"requested": ordinal, "allowed": available},
    )


def too_large(subject: str, size: int, limit: int, setting: str) -> Refusal:
    """Returns the refusal of a message of `size` bytes, of which at most `limit` are allowed.

    `subject`: the message's name in the error text. `setting`: the name of the limit in `OpenSessionResponse.limits`.
    """
    return Refusal(
        Reason.MESSAGE_TOO_LARGE,
        f"{subject} has {size} bytes; the maximum is {limit}.",
        fix=f"Send smaller messages; OpenSessionResponse.limits.{setting} is the maximum size.",
        details={"requested": size, "allowed": limit, "limit": setting},
    )


def malformed(message: str, fix: str) -> Refusal:
    """Returns the refusal `MALFORMED_MESSAGE`."""
    return Refusal(Reason.MALFORMED_MESSAGE, message, fix=fix)
