"""A minimal fake daemon: one device, buffers as bytearrays, recorded launches, and faults on demand.

It serves NodeService and DeviceService on a real gRPC server in this process. `gate` delays execution, and therefore
acknowledgements, so that tests can observe batching and back-pressure.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from hearth_proto import launches, reasons
from hearth_proto.v1 import commands_pb2, device_pb2, device_pb2_grpc, node_pb2, node_pb2_grpc, status_pb2

Response = device_pb2.ExecuteResponse
Kind = commands_pb2.Command


class _Broken(Exception):
    """Ends an Execute stream with a status."""

    def __init__(self, refusal: reasons.Refusal | None) -> None:
        self.refusal = refusal


class FakeDaemon(node_pb2_grpc.NodeServiceServicer, device_pb2_grpc.DeviceServiceServicer):
    def __init__(self, *, devices: int = 1, lease_s: float = 30.0, **limits: int) -> None:
        self.limits = {
            "max_inline_bytes": 1 << 20, "max_chunk_bytes": 1 << 16, "max_batch_bytes": 4 << 20,
            "max_batches_in_flight": 4, "max_code_bytes": 1 << 20,
        } | limits  # fmt: skip
        self.features = ["integers"]
        self.device_count = devices
        self.lease_s = lease_s
        self.generation = 1
        self.gate = threading.Event()
        self.gate.set()
        self.lock = threading.Lock()
        self.buffers: dict[int, bytearray] = {}
        self.batches: list[device_pb2.ExecuteRequest] = []
        self.commands: list[Any] = []
        self.records: list[launches.Record] = []
        self.stream_errors: dict[int, list[status_pb2.CommandFailure]] = defaultdict(list)
        # command kind -> refusal with which the next such command fails, once
        self.fail_next: dict[str, reasons.Refusal] = {}
        self.closed_tokens: list[str] = []
        self.renewals = 0
        self.attaches = 0
        self.refuse_attach: list[reasons.Refusal] = []
        self.silent = False  # an attach is not answered, as by a daemon that is stopped
        self.lose_on: str | None = None  # command kind on which the device is lost
        self.break_on: str | None = None  # command kind on which the connection ends without an error
        self.never_answer: set[str] = set()
        self.not_done = 0  # number of event queries that are still answered with "not done"
        self.uploads: dict[int, tuple[threading.Event, bytearray]] = {}
        self.downloads: dict[int, tuple[threading.Event, list[bytes]]] = {}
        self.server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.max_receive_message_length", 32 << 20)])
        node_pb2_grpc.add_NodeServiceServicer_to_server(self, self.server)
        device_pb2_grpc.add_DeviceServiceServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.gate.set()
        self.server.stop(None)

    def count(self, kind: str) -> int:
        with self.lock:
            return sum(command.WhichOneof("kind") == kind for command in self.commands)

    # ---- NodeService ----

    def _devices(self) -> list[node_pb2.Device]:
        properties = node_pb2.DeviceProperties(name="fake", backend="cpu", max_grid_dim=[2**31 - 1, 65535, 65535])
        return [
            node_pb2.Device(ordinal=i, state=node_pb2.DEVICE_STATE_SERVING, generation=self.generation,
                            properties=properties)
            for i in range(self.device_count)
        ]  # fmt: skip

    def Describe(self, request: Any, context: Any) -> node_pb2.DescribeResponse:
        protocol = node_pb2.VersionRange(min=1, max=1)
        return node_pb2.DescribeResponse(node="fake", server_version="0", protocol=protocol, devices=self._devices())

    def OpenSession(self, request: Any, context: Any) -> node_pb2.OpenSessionResponse:
        return node_pb2.OpenSessionResponse(
            session_id="s", session_token="t", protocol=1, server_version="0", lease_ns=int(self.lease_s * 1e9),
            limits=node_pb2.SessionLimits(**self.limits), devices=self._devices(), node="fake", features=self.features,
        )  # fmt: skip

    def RenewSession(self, request: Any, context: Any) -> node_pb2.RenewSessionResponse:
        self.renewals += 1
        return node_pb2.RenewSessionResponse()

    def CloseSession(self, request: Any, context: Any) -> node_pb2.CloseSessionResponse:
        self.closed_tokens.append(request.session_token)
        return node_pb2.CloseSessionResponse()

    def ListSessions(self, request: Any, context: Any) -> node_pb2.ListSessionsResponse:
        return node_pb2.ListSessionsResponse(sessions=[node_pb2.SessionInfo(session_id="s", client_name="c")])

    # ---- DeviceService ----

    def Execute(self, requests: Iterator[Any], context: Any) -> Iterator[Response]:
        attach = next(requests)
        assert attach.WhichOneof("kind") == "attach"
        self.attaches += 1
        if self.refuse_attach:
            _abort(context, self.refuse_attach.pop(0))
        if self.silent:
            ended = threading.Event()
            context.add_callback(ended.set)
            ended.wait()
            return
        yield Response(
            attached=device_pb2.Attached(
                generation=self.generation,
                max_batch_bytes=self.limits["max_batch_bytes"],
                max_batches_in_flight=self.limits["max_batches_in_flight"],
            )
        )
        expected = 1
        try:
            for request in requests:
                if request.WhichOneof("kind") == "received":
                    continue
                with self.lock:
                    self.batches.append(request)
                assert request.batch.seq == expected, (request.batch.seq, expected)
                expected += 1
                self.gate.wait()
                for command in request.batch.commands:
                    yield from self._execute(command)
                yield Response(ack=device_pb2.Ack(seq=request.batch.seq))
        except _Broken as broken:
            if broken.refusal is None:
                context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
            _abort(context, broken.refusal)

    def _execute(self, command: Any) -> Iterator[Response]:
        kind = command.WhichOneof("kind")
        with self.lock:
            self.commands.append(command)
        if kind == self.lose_on:
            self.lose_on = None
            refusal = reasons.Refusal(reasons.Reason.DEVICE_LOST, "the device process died.")
            lost = device_pb2.DeviceLost(generation=self.generation, status=refusal.to_status(), in_flight=["saxpy"])
            self.generation += 1
            self.buffers.clear()
            yield Response(event=device_pb2.Event(device_lost=lost))
            raise _Broken(refusal)
        if kind == self.break_on:
            self.break_on = None
            raise _Broken(None)
        result = commands_pb2.Result(request=command.request)
        refusal = self.fail_next.pop(kind, None)
        if refusal is None:
            try:
                self.do(kind, command, result)
            except reasons.Refusal as error:
                refusal = error
        if refusal is not None:
            if command.request:
                result.error.CopyFrom(refusal.to_status())
            else:
                failure = status_pb2.CommandFailure(command=kind, stream=command.stream, status=refusal.to_status())
                self.stream_errors[command.stream].append(failure)
        if command.request and kind not in self.never_answer:
            if result.WhichOneof("kind") is None and not result.HasField("error"):
                result.done.SetInParent()
            yield Response(result=result)

    def _raise_errors(self, stream: int | None) -> None:
        keys = list(self.stream_errors) if stream is None else [stream]
        failures = [failure for key in keys for failure in self.stream_errors.pop(key, [])]
        if failures:
            first_refusal = reasons.from_status(failures[0].status)
            raise _Listed(first_refusal, failures)

    def do(self, kind: str, command: Any, result: Any) -> None:
        message = getattr(command, kind)
        handler = getattr(self, f"do_{kind}", None)
        if handler is not None:
            handler(command, message, result)

    def do_launches(self, command: Any, message: bytes, result: Any) -> None:
        with self.lock:
            self.records.extend(launches.unpack(message))

    def do_allocate(self, command: Any, message: Any, result: Any) -> None:
        for allocation in message.parts or [message]:
            self.buffers[allocation.buffer] = bytearray(allocation.size)

    def do_free(self, command: Any, message: Any, result: Any) -> None:
        for buffer in message.buffers:
            del self.buffers[buffer]

    def do_write(self, command: Any, message: Any, result: Any) -> None:
        data = message.data
        if message.transfer:
            done, arrived = self.upload_of(message.transfer)
            assert done.wait(60)
            data = bytes(arrived)
            assert len(data) == message.size
        rows = message.rows if message.HasField("rows") else commands_pb2.Rows(width=len(data), rows=1)
        assert len(data) == rows.width * rows.rows
        _scatter(self.buffers[message.buffer], message.offset, rows.pitch, rows.width, data)

    def do_read(self, command: Any, message: Any, result: Any) -> None:
        self._raise_errors(command.stream)
        rows = message.rows if message.HasField("rows") else commands_pb2.Rows(width=message.size, rows=1)
        assert message.size == rows.width * rows.rows
        data = _gather(self.buffers[message.buffer], message.offset, rows.pitch, rows.width, rows.rows)
        result.read.size = len(data)
        if message.transfer:
            ready, chunks = self.download_of(message.transfer)
            chunks.append(data)
            ready.set()
        else:
            result.read.data = data

    def do_copy(self, command: Any, message: Any, result: Any) -> None:
        source = self.buffers[message.source]
        data = _gather(source, message.source_offset, message.source_pitch, message.size, max(message.rows, 1))
        destination = self.buffers[message.destination]
        _scatter(destination, message.destination_offset, message.destination_pitch, message.size, data)

    def do_fill(self, command: Any, message: Any, result: Any) -> None:
        data = message.pattern * (message.size // len(message.pattern))
        self.buffers[message.buffer][message.offset : message.offset + message.size] = data

    def do_sync(self, command: Any, message: Any, result: Any) -> None:
        self._raise_errors(None if message.all_streams else command.stream)

    def do_flush(self, command: Any, message: Any, result: Any) -> None:
        self._raise_errors(command.stream)

    def do_end_profile(self, command: Any, message: Any, result: Any) -> None:
        self._raise_errors(command.stream)
        result.profile.device_ns, result.profile.wall_ns = 5, 7

    def do_query_event(self, command: Any, message: Any, result: Any) -> None:
        result.event.done = command.query_event.wait or self.not_done <= 0
        self.not_done -= 1

    def do_elapsed_time(self, command: Any, message: Any, result: Any) -> None:
        result.event.elapsed_ns = 1_500_000

    def do_describe_module(self, command: Any, message: Any, result: Any) -> None:
        result.module.functions.append("f")
        result.module.log = "a warning"

    def do_describe_function(self, command: Any, message: Any, result: Any) -> None:
        result.function.registers = 12

    def do_get_global(self, command: Any, message: Any, result: Any) -> None:
        self.buffers[message.buffer] = bytearray(16)
        getattr(result, "global").size = 16

    def do_memory_usage(self, command: Any, message: Any, result: Any) -> None:
        result.memory_usage.allocations = len(self.buffers)

    def upload_of(self, transfer: int) -> tuple[threading.Event, bytearray]:
        with self.lock:  # the command and its stream arrive in two threads
            return self.uploads.setdefault(transfer, (threading.Event(), bytearray()))

    def download_of(self, transfer: int) -> tuple[threading.Event, list[bytes]]:
        with self.lock:
            return self.downloads.setdefault(transfer, (threading.Event(), []))

    def Upload(self, requests: Iterator[Any], context: Any) -> device_pb2.UploadResponse:
        done = arrived = None
        for request in requests:
            if done is None:
                assert request.session_token == "t"
                done, arrived = self.upload_of(request.transfer)
            arrived += request.data
        assert done is not None and arrived is not None
        done.set()
        return device_pb2.UploadResponse(received=len(arrived))

    def Download(self, request: Any, context: Any) -> Iterator[device_pb2.DownloadResponse]:
        ready, chunks = self.download_of(request.transfer)
        while not ready.wait(0.05):
            if not context.is_active():
                return
        data, size = chunks[0], self.limits["max_chunk_bytes"]
        for start in range(0, len(data), size):
            yield device_pb2.DownloadResponse(offset=start, data=data[start : start + size])


def _gather(buffer: bytearray, offset: int, pitch: int, width: int, rows: int) -> bytes:
    starts = range(offset, offset + rows * pitch, pitch) if rows > 1 else [offset]
    assert not width or all(start + width <= len(buffer) for start in starts)
    return b"".join(bytes(buffer[start : start + width]) for start in starts)


def _scatter(buffer: bytearray, offset: int, pitch: int, width: int, data: bytes) -> None:
    size = len(buffer)
    for row, start in enumerate(range(0, len(data), max(width, 1))):
        at = offset + row * pitch
        buffer[at : at + width] = data[start : start + width]
    assert len(buffer) == size, "written beyond the end"


class _Listed(reasons.Refusal):
    """A refusal that carries a list of a stream's failures."""

    def __init__(self, first: reasons.Refusal, failures: list[status_pb2.CommandFailure]) -> None:
        super().__init__(first.reason, first.message, fix=first.fix, details=first.details)
        self.failures = failures

    def to_status(self, failures: Any = ()) -> status_pb2.Status:
        return super().to_status(self.failures)


def _abort(context: Any, refusal: reasons.Refusal) -> None:
    status = refusal.to_status()
    context.set_trailing_metadata(((reasons.STATUS_DETAILS_KEY, status.SerializeToString()),))
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    context.abort(code, status.message)
