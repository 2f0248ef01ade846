"""Refusals are sent without loss, and Google's own library reads them."""

from __future__ import annotations

import contextlib
import pickle

import pytest
from google.protobuf.any_pb2 import Any
from google.rpc import error_details_pb2, status_pb2

from hearth_proto.reasons import (
    Code,
    Reason,
    Refusal,
    explained,
    from_status,
    from_text,
    stream_failures,
    to_text,
    within,
)
from hearth_proto.v1.status_pb2 import CommandFailure, Status

ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
PUBLISHED = {
    "INVALID_ARGUMENT": Code.INVALID_ARGUMENT,
    "INVALID_HANDLE": Code.NOT_FOUND,
    "HANDLE_IN_USE": Code.ALREADY_EXISTS,
    "MALFORMED_MESSAGE": Code.INVALID_ARGUMENT,
    "MESSAGE_TOO_LARGE": Code.RESOURCE_EXHAUSTED,
    "OUT_OF_BOUNDS": Code.OUT_OF_RANGE,
    "OUT_OF_MEMORY": Code.RESOURCE_EXHAUSTED,
    "QUOTA_EXCEEDED": Code.RESOURCE_EXHAUSTED,
    "QUEUE_FULL": Code.RESOURCE_EXHAUSTED,
    "ALLOCATION_FAILED": Code.FAILED_PRECONDITION,
    "COMPILE_FAILED": Code.INVALID_ARGUMENT,
    "COMPILE_LIMIT": Code.RESOURCE_EXHAUSTED,
    "NO_COMPILER": Code.FAILED_PRECONDITION,
    "FUNCTION_NOT_FOUND": Code.NOT_FOUND,
    "GLOBAL_NOT_FOUND": Code.NOT_FOUND,
    "MODULE_INVALID": Code.INVALID_ARGUMENT,
    "LAUNCH_INVALID": Code.INVALID_ARGUMENT,
    "LAUNCH_FAILED": Code.INTERNAL,
    "RESIDENCY_EXCEEDED": Code.INVALID_ARGUMENT,
    "OUT_OF_BOUNDS_WRITE": Code.DATA_LOSS,
    "OUT_OF_BOUNDS_READ": Code.DATA_LOSS,
    "TENSOR_MAP_INVALID": Code.INVALID_ARGUMENT,
    "CAPTURE_INVALID": Code.FAILED_PRECONDITION,
    "DEPENDENCY_FAILED": Code.FAILED_PRECONDITION,
    "TRANSFER_ABORTED": Code.ABORTED,
    "DEVICE_LOST": Code.UNAVAILABLE,
    "DEVICE_NOT_FOUND": Code.NOT_FOUND,
    "DEVICE_UNAVAILABLE": Code.UNAVAILABLE,
    "BUFFER_LOST": Code.DATA_LOSS,
    "PROFILE_INVALID": Code.FAILED_PRECONDITION,
    "COLLECTIVE_MISMATCH": Code.FAILED_PRECONDITION,
    "COLLECTIVE_TIMEOUT": Code.DEADLINE_EXCEEDED,
    "COMMUNICATOR_FAILED": Code.ABORTED,
    "SESSION_EXPIRED": Code.NOT_FOUND,
    "SESSION_LIMIT": Code.RESOURCE_EXHAUSTED,
    "VERSION_UNSUPPORTED": Code.FAILED_PRECONDITION,
    "UNAUTHENTICATED": Code.UNAUTHENTICATED,
    "PERMISSION_DENIED": Code.PERMISSION_DENIED,
    "UNSUPPORTED": Code.UNIMPLEMENTED,
    "DRAINING": Code.UNAVAILABLE,
    "CANCELLED": Code.CANCELLED,
    "INTERNAL": Code.INTERNAL,
    "DEADLINE_EXCEEDED": Code.DEADLINE_EXCEEDED,
    "SESSION_BARRED": Code.FAILED_PRECONDITION,
    "NOT_PUBLISHED": Code.NOT_FOUND,
    "NAME_IN_USE": Code.ALREADY_EXISTS,
    "READ_ONLY": Code.FAILED_PRECONDITION,
    "DATA_RACE": Code.DATA_LOSS,
    "DISK_FULL": Code.RESOURCE_EXHAUSTED,
    "OVERLOADED": Code.RESOURCE_EXHAUSTED,
}
"""Reasons of version 1 of the protocol, with their gRPC codes. Clients match on both, so entries are only ever
added."""


def test_published_reasons_keep_their_names_and_codes() -> None:
    assert {reason.value: reason.code for reason in Reason} == PUBLISHED
    assert {reason.name for reason in Reason} == set(PUBLISHED)


def test_every_reason_has_a_code() -> None:
    assert Code.OK not in {reason.code for reason in Reason}


@pytest.mark.parametrize("reason", Reason)
def test_round_trip(reason: Reason) -> None:
    refusal = Refusal(reason, "asked for 5, has 3", fix="ask for 3", details={"requested": 5}, retry_after_s=0.25)
    again = from_status(Status.FromString(refusal.to_status().SerializeToString()))
    assert (again.reason, again.message, again.fix, again.details, again.retry_after_s) == (
        reason, "asked for 5, has 3", "ask for 3", {"requested": "5"}, 0.25,
    )  # fmt: skip
    assert str(pickle.loads(pickle.dumps(refusal))) == str(refusal)


def test_status_is_readable_by_the_google_rpc_messages() -> None:
    wire = Refusal(Reason.QUEUE_FULL, "full", details={"limit": 8}, retry_after_s=1.5).to_status().SerializeToString()
    status = status_pb2.Status.FromString(wire)
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status.code == Code.RESOURCE_EXHAUSTED
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain, info.metadata["limit"]) == ("QUEUE_FULL", "hearth.v1", "8")
    assert status.details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 1500


def test_google_reads_invalid_fields() -> None:
    status = Refusal(Reason.LAUNCH_INVALID, "too large", fields=["block.x", "arguments[1]"]).to_status()
    wire = status_pb2.Status.FromString(status.SerializeToString())
    bad = error_details_pb2.BadRequest()
    assert wire.details[1].Unpack(bad)
    found = [(violation.field, violation.description) for violation in bad.field_violations]
    assert found == [("block.x", "too large"), ("arguments[1]", "too large")]
    assert from_status(status).fields == ("block.x", "arguments[1]")
    assert from_status(within(status, "command")).fields == ("command.block.x", "command.arguments[1]")
    assert pickle.loads(pickle.dumps(from_status(status))).fields == ("block.x", "arguments[1]")
    plain = Refusal(Reason.LAUNCH_INVALID, "too large").to_status()
    assert within(plain, "command") is plain and len(plain.details) == 1


def test_paths_move_outwards_and_nothing_else_changes() -> None:
    failures = [CommandFailure(command="launch f", seq=1)]
    refusal = Refusal(
        Reason.QUEUE_FULL, "full", fix="wait", details={"limit": 8}, retry_after_s=1.5, fields=["size", "offset"]
    )
    status = within(refusal.to_status(failures), "command")
    again = from_status(status)
    assert (again.reason, again.message, again.fix, again.details, again.retry_after_s) == (
        Reason.QUEUE_FULL, "full", "wait", {"limit": "8"}, 1.5,
    )  # fmt: skip
    assert stream_failures(status) == failures


@pytest.mark.parametrize(
    ("message", "fix", "text"),
    [
        ("Too many.", "Ask for less.", "QUOTA_EXCEEDED: Too many. Fix: Ask for less."),
        ("too many", "ask for less", "QUOTA_EXCEEDED: too many. Fix: ask for less"),
        ("too many", "", "QUOTA_EXCEEDED: too many"),
        ("", "ask for less", "QUOTA_EXCEEDED:  Fix: ask for less"),
    ],
)
def test_message_of_an_explained_status_has_reason_and_fix(message: str, fix: str, text: str) -> None:
    refusal = Refusal(Reason.QUOTA_EXCEEDED, message, fix=fix, details={"allowed": 4})
    status = explained(refusal.to_status())
    assert status.message == text == str(refusal)
    assert explained(status) == status, "once only"
    again = from_status(status)
    assert again.message.removesuffix(".") == message.removesuffix("."), "and a client shows neither twice"
    assert (again.reason, again.fix, again.details) == (refusal.reason, fix, {"allowed": "4"})
    assert str(again) == str(refusal)


def test_an_unknown_reason_is_explained_by_its_name() -> None:
    status = Refusal(Reason.INTERNAL, "x", fix="y").to_status()
    info = error_details_pb2.ErrorInfo(reason="NOT_INVENTED_YET", domain="hearth.v1", metadata={"fix": "y"})
    status.details[0].value = info.SerializeToString()
    assert explained(status).message == "NOT_INVENTED_YET: x. Fix: y"
    assert from_status(explained(status)).message == "x."


def test_a_status_without_error_info_is_not_explained() -> None:
    broken = Status(code=5, message="m", details=[Any(type_url=ERROR_INFO, value=b"\xff")])
    for status in (Status(code=14, message="connection refused"), broken):
        assert explained(status) is status


def test_failures_travel_with_the_status() -> None:
    inner = Refusal(Reason.LAUNCH_INVALID, "grid.x is 0")
    failures = [CommandFailure(command="launch f", seq=n, status=inner.to_status()) for n in range(3)]
    status = Status.FromString(inner.to_status(failures).SerializeToString())
    assert [failure.seq for failure in stream_failures(status)] == [0, 1, 2]
    assert stream_failures(inner.to_status()) == []


def test_status_of_another_service() -> None:
    assert from_status(Status(code=14, message="connection refused")).reason == Reason.DEVICE_UNAVAILABLE
    broken = Status(code=5, details=[Any(type_url=ERROR_INFO, value=b"\xff")])
    assert from_status(broken).reason == Reason.INVALID_HANDLE


def test_a_reason_from_the_future_keeps_its_name() -> None:
    status = Refusal(Reason.INTERNAL, "x").to_status()
    info = error_details_pb2.ErrorInfo(reason="NOT_INVENTED_YET", domain="hearth.v1")
    status.details[0].value = info.SerializeToString()
    assert from_status(status).details["reason"] == "NOT_INVENTED_YET"


def test_refusals_round_trip_as_text() -> None:
    refusal = Refusal(Reason.QUOTA_EXCEEDED, "5 GiB were asked for", fix="ask for less", details={"allowed": 4})
    again = from_text(to_text(refusal))
    assert (again.reason, again.message, again.fix, again.details) == (
        refusal.reason, refusal.message, refusal.fix, refusal.details
    )  # fmt: skip


@pytest.mark.parametrize("text", ["?", "", None, 5, "AAAA", "é"])
def test_invalid_text_raises_value_error_or_gives_no_message(text: object) -> None:
    with contextlib.suppress(ValueError):
        assert from_text(text).message == ""
