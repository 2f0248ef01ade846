"""Conversion of wire statuses to exceptions."""

from __future__ import annotations

import builtins
import pickle

import pytest

import hearth
from hearth import errors
from hearth_proto import reasons
from hearth_proto.v1 import status_pb2


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("COMPILE_FAILED", hearth.CompileError),
        ("LAUNCH_INVALID", hearth.LaunchError),
        ("OUT_OF_MEMORY", hearth.OutOfMemoryError),
        ("INVALID_HANDLE", hearth.InvalidHandleError),
        ("DEVICE_LOST", hearth.DeviceLostError),
        ("BUFFER_LOST", hearth.BufferLostError),
        ("QUOTA_EXCEEDED", hearth.QuotaExceededError),
        ("COLLECTIVE_TIMEOUT", hearth.CommunicatorError),
        ("SESSION_EXPIRED", hearth.SessionExpiredError),
        ("UNAUTHENTICATED", hearth.AuthenticationError),
        ("UNSUPPORTED", hearth.UnsupportedError),
        ("DEVICE_UNAVAILABLE", hearth.UnavailableError),
        ("DRAINING", hearth.UnavailableError),
        ("TRANSFER_ABORTED", hearth.TransferError),
        ("INTERNAL", hearth.HearthError),
    ],
)
def test_a_reason_has_a_class(reason: str, kind: type[hearth.HearthError]) -> None:
    refusal = reasons.Refusal(
        reasons.Reason(reason), "It broke.", fix="mend it.", details={"asked": 3}, retry_after_s=0.5
    )
    error = errors.from_status(refusal.to_status())
    assert type(error) is kind
    assert (error.reason, error.fix, error.details, error.retry_after) == (reason, "mend it.", {"asked": "3"}, 0.5)
    assert str(error) == "It broke. Fix: mend it."


def test_every_reason_makes_an_error() -> None:
    for reason in reasons.Reason:
        assert errors.from_status(reasons.Refusal(reason, "x").to_status()).reason == reason


def test_builtin_bases() -> None:
    assert issubclass(hearth.OutOfMemoryError, MemoryError)
    assert issubclass(hearth.ConnectError, ConnectionError) and issubclass(hearth.ConnectError, hearth.UnavailableError)
    assert issubclass(hearth.TimeoutError, builtins.TimeoutError)


def failure(reason: str, message: str, merged: int = 0) -> status_pb2.CommandFailure:
    status = reasons.Refusal(reasons.Reason(reason), message, details={"k": "v"}).to_status()
    return status_pb2.CommandFailure(command="launch f", stream=2, status=status, merged=merged)


def test_several_failures_are_listed_and_the_first_decides() -> None:
    listed = [failure("LAUNCH_INVALID", "grid.x is 0."), failure("OUT_OF_MEMORY", "full.", 3)]
    status = reasons.Refusal(reasons.Reason.LAUNCH_INVALID, "2 commands failed").to_status(listed)
    error = errors.from_status(status)
    assert type(error) is hearth.LaunchError
    assert "launch f: grid.x is 0." in str(error) and "4 more failed commands" in str(error)
    assert [entry.reason for entry in error.failures] == ["LAUNCH_INVALID", "OUT_OF_MEMORY"]
    assert (error.failures[1].command, error.failures[1].stream, error.failures[1].merged) == ("launch f", 2, 3)
    assert error.details == {"k": "v"}


def test_combined_errors_list_all_failures() -> None:
    first = errors.from_status(
        reasons.Refusal(reasons.Reason.LAUNCH_INVALID, "x").to_status([failure("LAUNCH_INVALID", "bad.", 2)])
    )
    second = errors.from_status(
        reasons.Refusal(reasons.Reason.CANCELLED, "y").to_status([failure("CANCELLED", "dropped.", 1)])
    )
    loss = hearth.DeviceLostError("lost", reason="DEVICE_LOST")
    assert errors.combined([first]).message == first.message == "launch f: bad. (2 more failed commands: see .failures)"
    both = errors.combined([first, second])
    assert type(both) is hearth.LaunchError and [each.reason for each in both.failures] == [
        "LAUNCH_INVALID",
        "CANCELLED",
    ]
    assert both.message == "launch f: bad. (4 more failed commands: see .failures)"
    lost = errors.combined([loss, second])
    assert type(lost) is hearth.DeviceLostError and lost.failures == second.failures
    assert lost.message == "lost (2 more failed commands: see .failures)"


def test_a_reason_of_a_newer_daemon_keeps_its_name() -> None:
    status = reasons.Refusal(reasons.Reason.INTERNAL, "new", details={"reason": "SOLAR_FLARE"}).to_status()
    assert errors.from_status(status).reason == "SOLAR_FLARE"


def test_a_compile_error_carries_the_log() -> None:
    status = reasons.Refusal(reasons.Reason.COMPILE_FAILED, "no", details={"log": "line 1: error"}).to_status()
    error = errors.from_status(status)
    assert isinstance(error, hearth.CompileError) and error.log == "line 1: error"


def test_errors_survive_pickling_and_copying() -> None:
    error = hearth.LaunchError("bad", reason="LAUNCH_INVALID", fix="f", details={"a": "b"})
    for copy in (pickle.loads(pickle.dumps(error)), error.again()):
        assert type(copy) is hearth.LaunchError and copy is not error
        assert (copy.reason, copy.fix, copy.details, str(copy)) == (error.reason, "f", {"a": "b"}, str(error))
