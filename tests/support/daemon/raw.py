"""Sessions through plain gRPC stubs, for requests that the client library would not send."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import grpc

from hearth_proto import PROTOCOL_MAX, PROTOCOL_MIN, reasons
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2, device_pb2_grpc, node_pb2, node_pb2_grpc, status_pb2

TIMEOUT = 60.0
KEEP = 1
"""Handle of the buffer in the sessions of the `stream` fixture."""


def is_cut(error: grpc.RpcError) -> bool:
    """Returns True if the connection was closed during the call, so that there is no answer of the daemon."""
    call: Any = error
    has_details = any(key == reasons.STATUS_DETAILS_KEY for key, _ in call.trailing_metadata() or ())
    return call.code() == grpc.StatusCode.UNAVAILABLE and not has_details


def refusal_of(error: grpc.RpcError) -> Refusal:
    """Returns the refusal of a failed call."""
    call: Any = error
    for key, value in call.trailing_metadata() or ():
        if key == reasons.STATUS_DETAILS_KEY:
            refusal = reasons.from_status(status_pb2.Status.FromString(value))
            assert refusal.code == call.code().value[0], "status and details disagree"
            return refusal
    raise AssertionError(f"no details: {call.code()} {call.details()}")


def refused(call: Any, *arguments: Any, **keywords: Any) -> Refusal:
    """Makes a call that must be refused; returns the refusal."""
    try:
        answer = call(*arguments, **keywords)
        if isinstance(answer, Iterator):
            answer = list(answer)
    except grpc.RpcError as error:
        return refusal_of(error)
    raise AssertionError(f"was answered: {answer}")


class Raw:
    """A session through gRPC stubs: `node` and `device` are the stubs of the two services."""

    def __init__(self, target: str, bearer: str = "") -> None:
        """`bearer` is a tenant's token, for a daemon that has tenants."""
        self.metadata = (("authorization", f"Bearer {bearer}"),) if bearer else ()
        self.channel = grpc.insecure_channel(target)
        self.node: Any = node_pb2_grpc.NodeServiceStub(self.channel)
        self.device: Any = device_pb2_grpc.DeviceServiceStub(self.channel)
        self.mint = itertools.count(1).__next__
        versions = node_pb2.VersionRange(min=PROTOCOL_MIN, max=PROTOCOL_MAX)
        request = node_pb2.OpenSessionRequest(protocol=versions, client_version="0", client_name="raw test")
        self.opened = self.node.OpenSession(request, timeout=TIMEOUT, metadata=self.metadata)
        self.token: str = self.opened.session_token

    def target(self, stream: int = 0, device: int = 0) -> device_pb2.Target:
        return device_pb2.Target(session_token=self.token, device=device, stream=stream)

    def call(self, rpc: str, command: Any, *, stream: int = 0, device: int = 0) -> Any:
        """Makes a single call; returns its answer, or the messages of a streaming call. Raises `grpc.RpcError`."""
        request = getattr(device_pb2, f"{rpc}Request")(target=self.target(stream, device), command=command)
        method = getattr(self.device, rpc)
        if rpc == "Write":
            return method(iter([request]), timeout=TIMEOUT)
        answer = method(request, timeout=TIMEOUT)
        return list(answer) if rpc == "Read" else answer

    def buffer(self, data: bytes, device: int = 0) -> int:
        """Creates a buffer with these bytes; returns its handle."""
        handle = self.mint()
        self.call("Allocate", c.Allocate(buffer=handle, size=len(data)), device=device)
        self.call("Write", c.Write(buffer=handle, data=data), device=device)
        return handle

    def read(self, buffer: int, size: int, offset: int = 0, device: int = 0) -> bytes:
        chunks = self.call("Read", c.Read(buffer=buffer, offset=offset, size=size), device=device)
        return b"".join(chunk.data for chunk in chunks)

    def function(self, code: str, name: str, device: int = 0) -> int:
        """Returns the handle of a kernel of a new module."""
        module, function = self.mint(), self.mint()
        load = c.LoadModule(module=module, kind=c.CODE_KIND_CUDA_CPP, code=code.encode())
        self.call("LoadModule", load, device=device)
        self.call("GetFunction", c.GetFunction(function=function, module=module, name=name), device=device)
        return function

    def execute(self, device: int = 0, attach: bool = True) -> Execute:
        """Opens an Execute stream, attached unless `attach` is False."""
        return Execute(self, device, attach)

    def __enter__(self) -> Raw:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.node.CloseSession(node_pb2.CloseSessionRequest(session_token=self.token), timeout=TIMEOUT)
        except grpc.RpcError as failed:
            # A daemon that drains ends with its last session, perhaps before the client has read the answer.
            if not is_cut(failed) and refusal_of(failed).reason != Reason.SESSION_EXPIRED:
                raise
        finally:
            self.channel.close()


class Execute:
    """An Execute stream, message by message; bytes are sent unchanged."""

    def __init__(self, session: Raw, device: int, attach: bool) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        method: Any = session.channel.stream_stream(
            "/hearth.v1.DeviceService/Execute",
            request_serializer=bytes,
            response_deserializer=device_pb2.ExecuteResponse.FromString,
        )
        self._responses = method(iter(self._requests.get, None), timeout=TIMEOUT)
        self._request_numbers = itertools.count(1)
        self.seq = 0
        self.attached: Any = None
        if attach:
            self.attach(session.token, device)
            self.attached = self.receive().attached
            self.seq = self.attached.last_seq

    def attach(self, token: str, device: int = 0) -> None:
        request = device_pb2.ExecuteRequest(attach=device_pb2.Attach(session_token=token, device=device))
        self.send(request.SerializeToString())

    def send(self, message: bytes) -> None:
        self._requests.put(message)

    def batch(self, *commands: c.Command, seq: int | None = None) -> None:
        """Sends a batch under the next sequence number, or under `seq`."""
        if seq is None:
            self.seq += 1
            seq = self.seq
        self.send(device_pb2.ExecuteRequest(batch=c.Batch(seq=seq, commands=commands)).SerializeToString())

    def receive(self) -> device_pb2.ExecuteResponse:
        response: device_pb2.ExecuteResponse = next(self._responses)
        return response

    def protocol_error(self) -> Refusal:
        """Returns the protocol error that the daemon reports for the preceding message."""
        while (response := self.receive()).WhichOneof("kind") == "ack":
            pass
        assert response.event.WhichOneof("kind") == "protocol_error", response
        return reasons.from_status(response.event.protocol_error)

    def ask(self, command: c.Command) -> c.Result:
        """Sends one command in a separate batch; returns its result."""
        command.request = next(self._request_numbers)
        self.batch(command)
        while True:
            response = self.receive()
            if response.WhichOneof("kind") == "result":
                assert response.result.request == command.request
                return response.result
            assert response.WhichOneof("kind") == "ack", response

    def failures(self, stream: int = 0) -> list[Any]:
        """Returns the failed commands of the stream, as the answer to a sync lists them."""
        result = self.ask(c.Command(stream=stream, sync=c.Sync()))
        return reasons.stream_failures(result.error)

    def ended(self) -> Refusal:
        """Reads until the stream ends, and returns the refusal that ended it."""
        try:
            for _ in self._responses:
                pass
        except grpc.RpcError as error:
            return refusal_of(error)
        raise AssertionError("the stream ended well")

    def cancel(self) -> None:
        """Cancels the stream: the receiving thread gets an error. May be called from any thread."""
        self._responses.cancel()

    def close(self) -> None:
        """Half-closes the stream, and reads the remaining responses."""
        self._requests.put(None)
        for _ in self._responses:
            pass

    def __enter__(self) -> Execute:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.put(None)
        self._responses.cancel()
