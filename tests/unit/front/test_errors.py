"""The end of a call: its code, its message and its details."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from hearth_proto.reasons import STATUS_DETAILS_KEY, Reason, Refusal
from hearthd.front.errors import abort

REFUSAL = Refusal(Reason.INVALID_ARGUMENT, "7 is not a mode", fix="use 1 or 2", fields=["command.mode"])


class Ended(Exception):
    """Raised by `Context.abort`, as gRPC does."""


class Context:
    """Records the end of a call."""

    def __init__(self) -> None:
        self.code = grpc.StatusCode.OK
        self.message = ""
        self.status = status_pb2.Status()

    async def abort(self, code: grpc.StatusCode, message: str, metadata: Sequence[tuple[str, bytes]]) -> None:
        ((key, value),) = metadata
        assert key == STATUS_DETAILS_KEY
        self.code, self.message, self.status = code, message, status_pb2.Status.FromString(value)
        raise Ended


class FramedContext(Context):
    framed = True


def ended(context: Context) -> Context:
    to_abort: Any = context
    with pytest.raises(Ended):
        asyncio.run(abort(to_abort, REFUSAL.to_status()))
    return context


def test_message_of_a_grpc_call_has_reason_and_fix() -> None:
    call = ended(Context())
    assert call.code is grpc.StatusCode.INVALID_ARGUMENT
    assert call.message == "INVALID_ARGUMENT: 7 is not a mode. Fix: use 1 or 2"
    assert (call.status.code, call.status.message) == (call.code.value[0], call.message), "grpcio-status compares them"
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert call.status.details[0].Unpack(info) and info.metadata["fix"] == "use 1 or 2"
    assert call.status.details[1].Unpack(bad) and bad.field_violations[0].field == "command.mode"
    assert bad.field_violations[0].description == "7 is not a mode"


def test_message_of_a_framed_call_has_neither() -> None:
    call = ended(FramedContext())
    assert call.message == call.status.message == "7 is not a mode"
