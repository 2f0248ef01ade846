"""Exceptions that Hearth raises: one class for each kind of reason.

Every error says what was wrong, with requested and allowed values, and how to fix it (`fix`). The error of a command
that was sent one way is raised later: by the next `synchronize`, `get`, `flush` or end of a profile on its stream,
together with every other failure of that stream (`failures`, oldest first). The first failure determines the class.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hearth_proto.retries import retryable

if TYPE_CHECKING:
    from hearth.failure import Failure
    from hearth_proto.v1 import status_pb2


class HearthError(Exception):
    """A command or call was refused or failed; the base class of every error that Hearth raises.

    Args:
        message: Description of the failure.
        reason: Stable name of the reason, e.g. ``OUT_OF_MEMORY``; None: that of the class.
        fix: Advice on how to avoid the error; empty: none.
        details: Requested and allowed values by name.
        failures: Failed commands that this error reports, oldest first.
        retry_after: Seconds after which a retry may succeed; None: a retry cannot help.
    """

    _class_reason = "INTERNAL"
    """Reason of an error that is made without one."""
    broken = False
    """True if the connection broke, which means that the daemon did not send this error as an answer."""

    @property
    def retryable(self) -> bool:
        """True if no part of the request has run, and a retry after `retry_after` seconds may succeed.

        Such a failure is temporary: no memory, no quota, or no running daemon at that time. `hearth_proto.retries` has
        the table of reasons. See `hearth.retrying`.
        """
        return retryable(self.reason, self.retry_after) and not self.failures and not self.broken

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        fix: str = "",
        details: Mapping[str, str] | None = None,
        failures: Sequence[Failure] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = self._class_reason if reason is None else reason
        """A stable name, e.g. ``OUT_OF_MEMORY``; see `hearth_proto.reasons.Reason`."""
        self.fix = fix
        self.details = dict(details or {})
        """Requested and allowed values, as the daemon sent them.

        With the environment variable HEARTH_DEBUG=1 also ``caller``: the file, line and function that submitted the
        command that failed, e.g. ``train.py:12 in step``.
        """
        self.failures = list(failures)
        self.retry_after = retry_after
        """Seconds after which a retry may succeed; None: a retry cannot help."""

    def __str__(self) -> str:
        text = self.message
        if self.fix:
            end = "" if text[-1:] in ".!?:\n" else "."
            text = f"{text}{end} Fix: {self.fix}"
        caller = self.details.get("caller")
        return f"{text}\n  Caller: {caller}" if caller else text

    def __reduce__(self) -> tuple[object, ...]:
        state = {key: value for key, value in self.__dict__.items() if not key.startswith("__")}
        return _rebuild, (type(self), self.message, state)

    def again(self) -> HearthError:
        """Returns a copy to be raised in another thread, because a traceback belongs to one thread only."""
        return _rebuild(type(self), self.message, dict(self.__dict__))


class CompileError(HearthError):
    """A module does not compile or load."""

    @property
    def log(self) -> str:
        """The messages of the compiler; empty if it gave none."""
        return self.details.get("log", "")


class LaunchError(HearthError):
    """A launch was refused because of its grid, block, shared memory or arguments, or the kernel failed."""

    _class_reason = "LAUNCH_INVALID"


class LaunchTypeError(LaunchError, TypeError):
    """A kernel argument is of a type that cannot be passed to a kernel."""


class OutOfMemoryError(HearthError, MemoryError):
    """The device, the session's quota or the memory pool does not have enough memory."""


class InvalidHandleError(HearthError):
    """The object does not exist, no longer exists, or belongs to another session."""

    _class_reason = "INVALID_HANDLE"


class DeviceLostError(HearthError):
    """The device process ended while work was in progress. Its arrays are lost; modules and streams remain usable."""


class BufferLostError(HearthError):
    """The array's memory was lost with the device process that held it."""

    _class_reason = "BUFFER_LOST"


class QuotaExceededError(HearthError):
    """A limit of the session, the tenant or the queue was exceeded."""


class CommunicatorError(HearthError):
    """A collective operation failed.

    The ranks' operations did not match (``COLLECTIVE_MISMATCH``), a rank was late (``COLLECTIVE_TIMEOUT``), or the
    communicator failed (``COMMUNICATOR_FAILED``), for example because a rank was lost. The group remains usable for its
    next operation; if a rank or a daemon is lost permanently, see `Group.rebuild`.
    """

    @property
    def recorder(self) -> list[str]:
        """The group's last operations before the failure, oldest first, from the daemon's flight recorder."""
        return self.details.get("recorder", "").splitlines()

    @property
    def missing(self) -> list[int]:
        """Participants that did not arrive or did not finish.

        Ordinals of devices in a group of one session, otherwise ranks.
        """
        return [int(rank) for rank in self.details.get("missing", "").split(",") if rank.strip().isdecimal()]

    def __str__(self) -> str:
        text = super().__str__()
        if not self.recorder:
            return text
        return "\n    ".join((f"{text}\n  The group's last operations:", *self.recorder))


class SessionExpiredError(HearthError):
    """The daemon does not know the session, or no longer knows it."""


class AuthenticationError(HearthError):
    """The caller has no valid credentials, or no right to perform the request."""

    _class_reason = "UNAUTHENTICATED"


class UnsupportedError(HearthError):
    """The daemon, the device or this version of the client cannot do this."""

    _class_reason = "UNSUPPORTED"


class UnsupportedTypeError(UnsupportedError, TypeError):
    """An operation of NumPy arrays that device arrays do not support: arithmetic, comparisons, pickling."""


class UnsupportedAttributeError(UnsupportedError, AttributeError):
    """A name of CuPy that Hearth does not have; `fix` says what to use instead."""


class UnavailableError(HearthError):
    """The daemon or the device does not accept work: it is draining, overloaded, or fenced after too many faults."""

    _class_reason = "DEVICE_UNAVAILABLE"


class ConnectError(UnavailableError, ConnectionError):
    """No daemon answers at the address, or the connection to the daemon broke."""


def broken(message: str, fix: str = "connect again.") -> ConnectError:
    """Builds the error of a broken connection; the work in progress may continue over another connection.

    Args:
        message: Message of the error.
        fix: Advice on how to continue.

    Returns:
        A `ConnectError` whose `broken` is True.
    """
    error = ConnectError(message, fix=fix)
    error.broken = True
    return error


class TransferError(HearthError):
    """The bytes of an upload or download did not arrive completely."""

    _class_reason = "TRANSFER_ABORTED"


class TimeoutError(HearthError, builtins.TimeoutError):
    """A deadline that the caller set has passed; the work itself continues."""

    _class_reason = "DEADLINE_EXCEEDED"


class CancelledError(HearthError):
    """The command was cancelled before the device began it; see `Device.cancel`. It has had no effect."""


class ClosedError(HearthError):
    """The node is closed, or it was opened in the parent process before a fork."""

    _class_reason = "CANCELLED"


def closed() -> ClosedError:
    """Returns the error that every use of a closed node raises."""
    return ClosedError("this node is closed.", fix="connect again with hearth.connect().")


def unanswered(device: int, timeout: float) -> TimeoutError:
    """Returns the error of an attachment to a device that is not answered in time.

    Args:
        device: Ordinal of the device.
        timeout: Seconds after which the wait ended.
    """
    return TimeoutError(
        f"device {device} did not answer within {rounded(timeout)} s.",
        fix="check the daemon with `hearth status`, or use a longer timeout.",
    )


def rounded(seconds: float) -> str:
    """Returns a time limit for a message: two digits, because what is left of a limit is a little less than it."""
    return f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}"


class ArgumentError(HearthError, ValueError):
    """An argument has an invalid value: a shape, a size, an index, a name."""

    _class_reason = "INVALID_ARGUMENT"


class DtypeError(HearthError, TypeError):
    """An argument has an invalid type: an array of another dtype, an object array."""

    _class_reason = "INVALID_ARGUMENT"


_BY_REASON: Mapping[str, type[HearthError]] = {
    "COMPILE_FAILED": CompileError,
    "COMPILE_LIMIT": CompileError,
    "NO_COMPILER": CompileError,
    "MODULE_INVALID": CompileError,
    "LAUNCH_INVALID": LaunchError,
    "LAUNCH_FAILED": LaunchError,
    "RESIDENCY_EXCEEDED": LaunchError,
    "OUT_OF_BOUNDS_WRITE": LaunchError,
    "OUT_OF_BOUNDS_READ": LaunchError,
    "DATA_RACE": LaunchError,
    "TENSOR_MAP_INVALID": LaunchError,
    "CAPTURE_INVALID": LaunchError,
    "OUT_OF_MEMORY": OutOfMemoryError,
    "ALLOCATION_FAILED": OutOfMemoryError,
    "INVALID_HANDLE": InvalidHandleError,
    "HANDLE_IN_USE": InvalidHandleError,
    "FUNCTION_NOT_FOUND": InvalidHandleError,
    "GLOBAL_NOT_FOUND": InvalidHandleError,
    "NOT_PUBLISHED": InvalidHandleError,
    "NAME_IN_USE": InvalidHandleError,
    "DEVICE_NOT_FOUND": InvalidHandleError,
    "DEVICE_LOST": DeviceLostError,
    "BUFFER_LOST": BufferLostError,
    "QUOTA_EXCEEDED": QuotaExceededError,
    "QUEUE_FULL": QuotaExceededError,
    "SESSION_LIMIT": QuotaExceededError,
    "DISK_FULL": UnavailableError,
    "COLLECTIVE_MISMATCH": CommunicatorError,
    "COLLECTIVE_TIMEOUT": CommunicatorError,
    "COMMUNICATOR_FAILED": CommunicatorError,
    "SESSION_EXPIRED": SessionExpiredError,
    "UNAUTHENTICATED": AuthenticationError,
    "PERMISSION_DENIED": AuthenticationError,
    "SESSION_BARRED": QuotaExceededError,
    "UNSUPPORTED": UnsupportedError,
    "VERSION_UNSUPPORTED": UnsupportedError,
    "DEVICE_UNAVAILABLE": UnavailableError,
    "DRAINING": UnavailableError,
    "OVERLOADED": UnavailableError,
    "TRANSFER_ABORTED": TransferError,
    "DEADLINE_EXCEEDED": TimeoutError,
    "INVALID_ARGUMENT": ArgumentError,
    "OUT_OF_BOUNDS": ArgumentError,
    "READ_ONLY": ArgumentError,
    "CANCELLED": CancelledError,
}


def error_class(reason: str) -> type[HearthError]:
    """Returns the exception class of a reason; `HearthError` itself for a reason without a separate class."""
    return _BY_REASON.get(reason, HearthError)


def from_status(status: status_pb2.Status) -> HearthError:
    """Builds the error that a wire status describes.

    If the status lists failed commands, the class is that of the first failure.
    """
    from hearth_proto import reasons

    refusal = reasons.from_status(status)
    listed = reasons.stream_failures(status)
    if not listed:
        reason = _reason(refusal.reason, refusal.details)
        return error_class(reason)(
            refusal.message,
            reason=reason,
            fix=refusal.fix,
            details=refusal.details,
            retry_after=refusal.retry_after_s,
        )
    from hearth.failure import Failure

    failures = []
    for entry in listed:
        cause = reasons.from_status(entry.status)
        reason = _reason(cause.reason, cause.details)
        failures.append(Failure(entry.command, entry.stream, reason, cause.message, entry.merged))
    first = reasons.from_status(listed[0].status)
    reason = failures[0].reason
    message, command = first.message, failures[0].command
    if command and command.rpartition(" ")[2] not in message:
        message = f"{command}: {message}"
    return error_class(reason)(
        message + _more(failures, 1),
        reason=reason,
        fix=first.fix or refusal.fix,
        details=first.details or refusal.details,
        failures=failures,
        retry_after=first.retry_after_s or refusal.retry_after_s,
    )


def combined(errors: Sequence[HearthError]) -> HearthError:
    """Returns one error that reports several, at least one.

    Its class and message are those of the first; it lists the failed commands of all.
    """
    first = errors[0]
    failures = [failure for error in errors for failure in error.failures]
    own = min(1, len(first.failures))  # the loss of a connection is not the failure of one command
    message = first.message.removesuffix(_more(first.failures, own)) + _more(failures, own)
    return _rebuild(type(first), message, {**first.__dict__, "message": message, "failures": failures})


def _more(failures: Sequence[Failure], own: int) -> str:
    """Returns the end of the message of an error that lists `failures`, `own` of which its message describes."""
    more = sum(1 + failure.merged for failure in failures) - own
    return f" ({more} more failed command{'s' if more > 1 else ''}: see .failures)" if more else ""


def _reason(reason: str, details: Mapping[str, str]) -> str:
    """Returns the name of the reason as the daemon sent it.

    A newer daemon's reason that this client does not know is sent in the details.
    """
    return details.get("reason", str(reason)) if reason == "INTERNAL" else str(reason)


def _rebuild(kind: type[HearthError], message: str, state: dict[str, object]) -> HearthError:
    error = kind(message)
    error.__dict__.update(state)
    return error
