"""A handler's errors as gRPC gets them, where gRPC has ended the call by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from grpc._cython import cygrpc

from hearth_proto.reasons import Reason, Refusal
from hearthd.front.rpc import guarded


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


class Ended:
    """A call that gRPC has begun to end because its client has gone."""

    async def abort(self, *_: Any) -> None:
        raise cygrpc.ExecuteBatchError("Failed grpc_call_start_batch: 8")


def test_a_client_that_has_gone_is_not_told_and_nobody_else_either() -> None:
    """gRPC logs whatever else leaves a handler as a failure of the service."""

    async def behaviour(request: Any, context: Any) -> None:
        raise Refusal(Reason.HANDLE_IN_USE, "Transfer 1 goes on in another stream.")

    observer = Observer()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(guarded("DeviceService", "Download", behaviour, observer)(None, Ended()))
    assert observer.handled == [Refusal(Reason.HANDLE_IN_USE, "").code.name]
    assert observer.reasons == ["HANDLE_IN_USE"]
