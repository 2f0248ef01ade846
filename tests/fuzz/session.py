"""The session that is fuzzed: opened again whenever a message ended it, with objects to which fuzzed handles refer."""

from __future__ import annotations

import contextlib
from typing import Any

import grpc

from hearth_proto import PROTOCOL_MAX, PROTOCOL_MIN
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2, node_pb2
from tests.fuzz.furniture import FURNITURE

SETUP_S = 30.0


class Session:
    """A session through plain gRPC stubs. `metadata` identifies the caller."""

    def __init__(self, channel: grpc.Channel, metadata: tuple[tuple[str, str], ...], devices: int) -> None:
        self._channel = channel
        self._metadata = metadata
        self._devices = devices
        self.token = ""
        self.stale = ""
        """Token of the previous session, which has ended."""
        self.opened = 0

    def call(self, service: str, method: str, request: Any, answer: Any) -> Any:
        made: Any = self._channel.unary_unary(
            f"/hearth.v1.{service}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return made(request, timeout=SETUP_S, metadata=self._metadata)

    def renew(self) -> None:
        """Closes the session, and opens another one."""
        self.close()
        request = node_pb2.OpenSessionRequest(
            protocol=node_pb2.VersionRange(min=PROTOCOL_MIN, max=PROTOCOL_MAX), client_name="fuzz"
        )
        self.stale = self.token
        self.token = self.call("NodeService", "OpenSession", request, node_pb2.OpenSessionResponse).session_token
        self.opened += 1
        for ordinal in range(self._devices):
            self._furnish(ordinal)

    def alive(self) -> bool:
        """Returns whether the session is open, and its default stream responds."""
        for ordinal in range(self._devices):
            target = device_pb2.Target(session_token=self.token, device=ordinal)
            request = device_pb2.FlushRequest(target=target, command=c.Flush())
            made: Any = self._channel.unary_unary(
                "/hearth.v1.DeviceService/Flush",
                request_serializer=device_pb2.FlushRequest.SerializeToString,
                response_deserializer=c.Done.FromString,
            )
            try:
                made(request, timeout=2.0, metadata=self._metadata)
            except grpc.RpcError as error:
                if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.DEADLINE_EXCEEDED):
                    return False
                if error.code() == grpc.StatusCode.NOT_FOUND:
                    return False
        return True

    def close(self) -> None:
        if self.token:
            with contextlib.suppress(grpc.RpcError):  # the session has ended
                request = node_pb2.CloseSessionRequest(session_token=self.token)
                self.call("NodeService", "CloseSession", request, node_pb2.CloseSessionResponse)

    def _furnish(self, ordinal: int) -> None:
        """Creates the objects on a stream that ends before the next call."""
        attach = device_pb2.Attach(session_token=self.token, device=ordinal)
        messages = [
            device_pb2.ExecuteRequest(attach=attach),
            device_pb2.ExecuteRequest(batch=c.Batch(seq=1, commands=FURNITURE)),
        ]
        execute: Any = self._channel.stream_stream(
            "/hearth.v1.DeviceService/Execute",
            request_serializer=device_pb2.ExecuteRequest.SerializeToString,
            response_deserializer=device_pb2.ExecuteResponse.FromString,
        )
        for _ in execute(iter(messages), timeout=SETUP_S, metadata=self._metadata):
            pass
