"""A handler's errors as gRPC receives them, if gRPC has already ended the call."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest
from grpc._cython import cygrpc

from hearth_proto.reasons import Reason, Refusal
from hearthd.front.rpc.server_call import StreamClosed, SubjectEnded, guarded


class Observer:
    def __init__(self) -> None:
        self.handled: list[str] = []
        self.reasons: list[str] = []

    def call_started(self, service: str, method: str) -> None:
        pass

    def call_refused(self, service: str, method: str, reason: str) -> None:
        self.reasons.append(reason)

    def call_handled(self, service: str, method: str, code: str, seconds: float) -> None:
        self.handled.append(code)


class OpenGate:
    """The gate of a method that admits every call."""

    service = "DeviceService"

    def __init__(self, method: str) -> None:
        self.method = method

    async def enter(self, context: Any) -> None:
        pass


def guard(method: str, behaviour: Any, observer: Observer) -> Any:
    gate: Any = OpenGate(method)
    return guarded(gate, behaviour, observer)


class Ended:
    """A call that gRPC has begun to end because its client has disconnected."""

    async def abort(self, *_: Any) -> None:
        raise cygrpc.ExecuteBatchError("Failed grpc_call_start_batch: 8")


def test_error_for_a_departed_client_reaches_no_client() -> None:
    """gRPC would log any other exception of a handler as a failure of the service."""

    async def behaviour(request: Any, context: Any) -> None:
        raise Refusal(Reason.HANDLE_IN_USE, "Transfer 1 is under way in another stream.")

    observer = Observer()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(guard("Download", behaviour, observer)(None, Ended()))
    assert observer.handled == [Refusal(Reason.HANDLE_IN_USE, "").code.name]
    assert observer.reasons == ["HANDLE_IN_USE"]


@pytest.mark.parametrize(
    ("leaves", "code"), [(StreamClosed(), "OK"), (asyncio.CancelledError(), "CANCELLED")], ids=["closed", "cut off"]
)
def test_stream_closed_by_its_client_is_not_an_error(leaves: asyncio.CancelledError, code: str) -> None:
    async def behaviour(request: Any, context: Any) -> None:
        raise leaves

    observer = Observer()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(guard("Execute", behaviour, observer)(None, Ended()))
    assert observer.handled == [code] and not observer.reasons


def test_stream_of_a_closed_session_ends_with_that_reason_and_no_error() -> None:
    told: list[Any] = []

    class Context:
        async def abort(self, *status: Any) -> None:
            told.append(status)
            raise grpc.aio.AbortError

    async def behaviour(request: Any, context: Any) -> None:
        raise SubjectEnded(Refusal(Reason.SESSION_EXPIRED, "Its client closed it."))

    observer = Observer()
    with pytest.raises(grpc.aio.AbortError):
        asyncio.run(guard("Execute", behaviour, observer)(None, Context()))
    assert told and observer.handled == ["OK"] and not observer.reasons
