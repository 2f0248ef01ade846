"""Stable reason codes and their mapping to gRPC status and `google.rpc` details.

A refusal is sent as a `google.rpc.Status`: the gRPC code, one sentence that says what was requested and what is
allowed, and an `ErrorInfo`. Its `reason` is one of `Reason`, its `domain` is ``hearth.v1``, and its `metadata` contains
the requested and allowed values and `fix`. A `RetryInfo` says when a retry may succeed, and a `BadRequest` names the
invalid fields of the request. `hearth.v1.Status`, `ErrorInfo`, `RetryInfo` and `BadRequest` have the field numbers of
the corresponding `google.rpc` messages, so that the client needs no further package to read them, and every gRPC tool
can read them.

The message of a status that ends a gRPC call contains the reason and the fix as well (`explained`), because many tools
show only the code and the message of an error. `from_status` removes both again.
"""

from __future__ import annotations

import base64
import contextlib
import enum
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message

from hearth_proto.retries import retryable
from hearth_proto.v1 import status_pb2

M = TypeVar("M", bound=Message)

DOMAIN = "hearth.v1"
STATUS_DETAILS_KEY = "grpc-status-details-bin"
"""Trailing metadata key under which gRPC carries a serialized `google.rpc.Status`."""

_URLS = {
    status_pb2.ErrorInfo: "type.googleapis.com/google.rpc.ErrorInfo",
    status_pb2.RetryInfo: "type.googleapis.com/google.rpc.RetryInfo",
    status_pb2.BadRequest: "type.googleapis.com/google.rpc.BadRequest",
    status_pb2.StreamErrors: "type.googleapis.com/hearth.v1.StreamErrors",
}
"""Name of each kind of detail of a status."""


class Code(enum.IntEnum):
    """gRPC status codes, by number (https://grpc.io/docs/guides/status-codes/)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Reason(enum.StrEnum):
    """Reason for which a command or call was refused. Names are only ever added: clients match on them."""

    code: Code
    """The gRPC status code of the reason."""

    def __new__(cls, name: str, code: Code) -> Reason:
        """Makes the member of this name, whose gRPC status code is `code`."""
        reason = str.__new__(cls, name)
        reason._value_, reason.code = name, code
        return reason

    INVALID_ARGUMENT = "INVALID_ARGUMENT", Code.INVALID_ARGUMENT
    INVALID_HANDLE = "INVALID_HANDLE", Code.NOT_FOUND
    HANDLE_IN_USE = "HANDLE_IN_USE", Code.ALREADY_EXISTS
    MALFORMED_MESSAGE = "MALFORMED_MESSAGE", Code.INVALID_ARGUMENT
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE", Code.RESOURCE_EXHAUSTED
    OUT_OF_BOUNDS = "OUT_OF_BOUNDS", Code.OUT_OF_RANGE
    OUT_OF_MEMORY = "OUT_OF_MEMORY", Code.RESOURCE_EXHAUSTED
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED", Code.RESOURCE_EXHAUSTED
    QUEUE_FULL = "QUEUE_FULL", Code.RESOURCE_EXHAUSTED
    ALLOCATION_FAILED = "ALLOCATION_FAILED", Code.FAILED_PRECONDITION
    COMPILE_FAILED = "COMPILE_FAILED", Code.INVALID_ARGUMENT
    COMPILE_LIMIT = "COMPILE_LIMIT", Code.RESOURCE_EXHAUSTED
    NO_COMPILER = "NO_COMPILER", Code.FAILED_PRECONDITION
    FUNCTION_NOT_FOUND = "FUNCTION_NOT_FOUND", Code.NOT_FOUND
    GLOBAL_NOT_FOUND = "GLOBAL_NOT_FOUND", Code.NOT_FOUND
    MODULE_INVALID = "MODULE_INVALID", Code.INVALID_ARGUMENT
    LAUNCH_INVALID = "LAUNCH_INVALID", Code.INVALID_ARGUMENT
    LAUNCH_FAILED = "LAUNCH_FAILED", Code.INTERNAL
    RESIDENCY_EXCEEDED = "RESIDENCY_EXCEEDED", Code.INVALID_ARGUMENT
    OUT_OF_BOUNDS_WRITE = "OUT_OF_BOUNDS_WRITE", Code.DATA_LOSS
    OUT_OF_BOUNDS_READ = "OUT_OF_BOUNDS_READ", Code.DATA_LOSS
    TENSOR_MAP_INVALID = "TENSOR_MAP_INVALID", Code.INVALID_ARGUMENT
    CAPTURE_INVALID = "CAPTURE_INVALID", Code.FAILED_PRECONDITION
    DEPENDENCY_FAILED = "DEPENDENCY_FAILED", Code.FAILED_PRECONDITION
    TRANSFER_ABORTED = "TRANSFER_ABORTED", Code.ABORTED
    DEVICE_LOST = "DEVICE_LOST", Code.UNAVAILABLE
    DEVICE_NOT_FOUND = "DEVICE_NOT_FOUND", Code.NOT_FOUND
    DEVICE_UNAVAILABLE = "DEVICE_UNAVAILABLE", Code.UNAVAILABLE
    BUFFER_LOST = "BUFFER_LOST", Code.DATA_LOSS
    PROFILE_INVALID = "PROFILE_INVALID", Code.FAILED_PRECONDITION
    COLLECTIVE_MISMATCH = "COLLECTIVE_MISMATCH", Code.FAILED_PRECONDITION
    COLLECTIVE_TIMEOUT = "COLLECTIVE_TIMEOUT", Code.DEADLINE_EXCEEDED
    COMMUNICATOR_FAILED = "COMMUNICATOR_FAILED", Code.ABORTED
    SESSION_EXPIRED = "SESSION_EXPIRED", Code.NOT_FOUND
    SESSION_LIMIT = "SESSION_LIMIT", Code.RESOURCE_EXHAUSTED
    VERSION_UNSUPPORTED = "VERSION_UNSUPPORTED", Code.FAILED_PRECONDITION
    UNAUTHENTICATED = "UNAUTHENTICATED", Code.UNAUTHENTICATED
    PERMISSION_DENIED = "PERMISSION_DENIED", Code.PERMISSION_DENIED
    UNSUPPORTED = "UNSUPPORTED", Code.UNIMPLEMENTED
    DRAINING = "DRAINING", Code.UNAVAILABLE
    CANCELLED = "CANCELLED", Code.CANCELLED
    INTERNAL = "INTERNAL", Code.INTERNAL
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED", Code.DEADLINE_EXCEEDED
    SESSION_BARRED = "SESSION_BARRED", Code.FAILED_PRECONDITION
    NOT_PUBLISHED = "NOT_PUBLISHED", Code.NOT_FOUND
    NAME_IN_USE = "NAME_IN_USE", Code.ALREADY_EXISTS
    READ_ONLY = "READ_ONLY", Code.FAILED_PRECONDITION
    DATA_RACE = "DATA_RACE", Code.DATA_LOSS
    DISK_FULL = "DISK_FULL", Code.RESOURCE_EXHAUSTED
    OVERLOADED = "OVERLOADED", Code.RESOURCE_EXHAUSTED


class Refusal(Exception):
    """A command or call that the daemon refused or that failed; sent as a `google.rpc.Status`.

    `message` is one sentence that says what was requested and what is allowed; `fix` says what to do. `details` holds
    the requested and allowed values (strings, sent as `ErrorInfo.metadata`). `retry_after_s`, in seconds, adds a
    `RetryInfo`. `fields`, the paths of the request's invalid fields such as ``block.x``, adds a `BadRequest`; the paths
    of a command begin in the command's message.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        fix: str = "",
        details: Mapping[str, object] | None = None,
        retry_after_s: float | None = None,
        fields: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.fix = fix
        self.details = {key: str(value) for key, value in (details or {}).items()}
        self.retry_after_s = retry_after_s
        self.fields = tuple(fields)

    def __str__(self) -> str:
        return _full_text(str(self.reason), self.message, self.fix)

    def __reduce__(self) -> tuple[object, ...]:
        make = partial(
            Refusal, fix=self.fix, details=self.details, retry_after_s=self.retry_after_s, fields=self.fields
        )
        return make, (self.reason, self.message)

    @property
    def code(self) -> Code:
        """The gRPC status code of the reason."""
        return self.reason.code

    @property
    def retryable(self) -> bool:
        """True if the same request may be repeated after `retry_after_s` seconds and may then succeed."""
        return retryable(self.reason, self.retry_after_s)

    def to_status(self, failures: Sequence[status_pb2.CommandFailure] = ()) -> status_pb2.Status:
        """Returns the refusal as a wire status; `failures` lists the failed commands of a stream, oldest first."""
        status = status_pb2.Status(code=int(self.code), message=self.message)
        info = status_pb2.ErrorInfo(reason=str(self.reason), domain=DOMAIN, metadata=self.details)
        if self.fix:
            info.metadata["fix"] = self.fix
        details: list[Message] = [info]
        if self.retry_after_s is not None:
            retry = status_pb2.RetryInfo()
            retry.retry_delay.FromNanoseconds(int(self.retry_after_s * 1e9))
            details.append(retry)
        if self.fields:
            violations = [
                status_pb2.BadRequest.FieldViolation(field=field, description=self.message) for field in self.fields
            ]
            details.append(status_pb2.BadRequest(field_violations=violations))
        if failures:
            details.append(status_pb2.StreamErrors(failures=failures))
        for detail in details:
            status.details.append(AnyMessage(type_url=_URLS[type(detail)], value=detail.SerializeToString()))
        return status


def _full_text(reason: str, message: str, fix: str) -> str:
    if not fix:
        return f"{reason}: {message}"
    end = "" if message[-1:] in ".!?:\n" else "."
    return f"{reason}: {message}{end} Fix: {fix}"


def explained(status: status_pb2.Status) -> status_pb2.Status:
    """Returns `status` with the message "REASON: message Fix: fix".

    A status without an `ErrorInfo`, and one whose message has this form already, is returned unchanged.
    """
    info = next(_details(status, status_pb2.ErrorInfo), None)
    if info is None:
        return status
    fix = info.metadata.get("fix", "")
    result = status_pb2.Status()
    result.CopyFrom(status)
    result.message = _full_text(info.reason, _plain_message(status.message, info.reason, fix), fix)
    return result


def _plain_message(message: str, reason: str, fix: str) -> str:
    """Returns the message without the reason and the fix that `explained` adds.

    A period that `explained` inserted before the fix remains.
    """
    head, tail = f"{reason}: ", f" Fix: {fix}" if fix else ""
    if message.startswith(head) and message.endswith(tail) and len(message) >= len(head) + len(tail):
        return message[len(head) : len(message) - len(tail)]
    return message


def within(status: status_pb2.Status, field: str) -> status_pb2.Status:
    """Returns `status` with `field`, which holds the command, put in front of the paths of invalid fields."""
    refusal = from_status(status)
    if not refusal.fields:
        return status
    refusal.fields = tuple(f"{field}.{path}" for path in refusal.fields)
    return refusal.to_status(stream_failures(status))


def _details(status: status_pb2.Status, kind: type[M]) -> Iterator[M]:
    """Yields the details of one kind, except those that cannot be decoded."""
    for detail in status.details:
        if detail.type_url == _URLS[kind]:
            with contextlib.suppress(DecodeError):
                yield kind.FromString(detail.value)


def from_status(status: status_pb2.Status) -> Refusal:
    """Returns the refusal that a wire status describes, without the reason and the fix that `explained` adds.

    For a status without an `ErrorInfo`, the reason follows from its code.
    """
    reason = _reason_of_code(status.code)
    message, fix = status.message, ""
    details: dict[str, str] = {}
    retry: float | None = None
    for info in _details(status, status_pb2.ErrorInfo):
        details = dict(info.metadata)
        fix = details.pop("fix", "")
        message = _plain_message(message, info.reason, fix)
        if info.reason in Reason.__members__:
            reason = Reason[info.reason]
        else:  # a reason of a newer daemon: keep its name among the details
            details.setdefault("reason", info.reason)
    for retry_info in _details(status, status_pb2.RetryInfo):
        retry = retry_info.retry_delay.ToNanoseconds() / 1e9
    requests = _details(status, status_pb2.BadRequest)
    fields = [violation.field for request in requests for violation in request.field_violations]
    return Refusal(reason, message, fix=fix, details=details, retry_after_s=retry, fields=fields)


def to_text(refusal: Refusal) -> str:
    """Returns the refusal as text, for JSON messages between processes."""
    return base64.b64encode(refusal.to_status().SerializeToString()).decode()


def from_text(text: object) -> Refusal:
    """Returns the refusal that `to_text` encoded. Raises `ValueError` for any other text."""
    try:
        return from_status(status_pb2.Status.FromString(base64.b64decode(str(text), validate=True)))
    except DecodeError as error:
        raise ValueError(f"the text is not a status: {error}") from None


def stream_failures(status: status_pb2.Status) -> list[status_pb2.CommandFailure]:
    """Returns the failed commands that a stream's status lists, oldest first; an empty list: there are none."""
    errors = next(_details(status, status_pb2.StreamErrors), None)
    return list(errors.failures) if errors is not None else []


_BY_CODE: Mapping[int, Reason] = {
    Code.CANCELLED: Reason.CANCELLED,
    Code.INVALID_ARGUMENT: Reason.INVALID_ARGUMENT,
    Code.NOT_FOUND: Reason.INVALID_HANDLE,
    Code.PERMISSION_DENIED: Reason.PERMISSION_DENIED,
    Code.RESOURCE_EXHAUSTED: Reason.QUOTA_EXCEEDED,
    Code.UNIMPLEMENTED: Reason.UNSUPPORTED,
    Code.UNAVAILABLE: Reason.DEVICE_UNAVAILABLE,
    Code.UNAUTHENTICATED: Reason.UNAUTHENTICATED,
}


def _reason_of_code(code: int) -> Reason:
    return _BY_CODE.get(code, Reason.INTERNAL)
