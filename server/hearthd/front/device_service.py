"""DeviceService: Execute, the transfer streams and the single calls, put on the server as one table of handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
import grpc.aio

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import device_pb2, node_pb2
from hearthd.front import calls, execute, refusals, transfer_streams
from hearthd.front.channel import Channel
from hearthd.front.refusals import Context
from hearthd.front.rpc import CallObserver, guarded
from hearthd.front.sessions import SessionTable
from hearthd.front.supervisor import Supervisor

NAME = "hearth.v1.DeviceService"


class Traffic(CallObserver, Protocol):
    """Whoever counts calls and bytes."""

    def execute_traffic(self, batches: int, received: int, sent: int) -> None: ...

    def transfer_traffic(self, received: int, sent: int) -> None: ...


@dataclass(frozen=True)
class Limits:
    """What clients are told to keep to, and are held to."""

    max_inline_bytes: int = 1 << 20
    max_chunk_bytes: int = 1 << 20
    max_code_bytes: int = 16 << 20
    window: execute.Window = field(default_factory=execute.Window)

    def message(self) -> node_pb2.SessionLimits:
        return node_pb2.SessionLimits(
            max_inline_bytes=self.max_inline_bytes,
            max_chunk_bytes=self.max_chunk_bytes,
            max_batch_bytes=self.window.max_batch_bytes,
            max_batches_in_flight=self.window.max_batches,
            max_code_bytes=self.max_code_bytes,
        )


class DeviceService:
    """The work on devices."""

    def __init__(self, sessions: SessionTable, supervisor: Supervisor, limits: Limits, traffic: Traffic) -> None:
        self._sessions = sessions
        self._supervisor = supervisor
        self._limits = limits
        self._traffic = traffic
        self.attachments: set[execute.Attachment] = set()

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """What the gRPC server registers. Execute, Upload, Download and Read travel as bytes, undecoded."""
        handlers: dict[str, Any] = {
            "Execute": grpc.stream_stream_rpc_method_handler(self._guard("Execute", self._execute)),
            "Upload": grpc.stream_unary_rpc_method_handler(
                self._guard("Upload", self._upload), response_serializer=calls.serialize
            ),
            "Download": grpc.unary_stream_rpc_method_handler(
                self._guard("Download", self._download), request_deserializer=device_pb2.DownloadRequest.FromString
            ),
            "Write": grpc.stream_unary_rpc_method_handler(
                self._guard("Write", self._write),
                request_deserializer=device_pb2.WriteRequest.FromString,
                response_serializer=calls.serialize,
            ),
            "Read": grpc.unary_stream_rpc_method_handler(
                self._guard("Read", self._read), request_deserializer=device_pb2.ReadRequest.FromString
            ),
        }
        for call in calls.CALLS:
            handle = calls.behaviour(call, self._using)
            if call.rpc == "LoadModule":
                handle = self._check_code(handle)
            handlers[call.rpc] = calls.method_handler(call, self._guard(call.rpc, handle))
        return grpc.method_handlers_generic_handler(NAME, handlers)

    def announce(self, event: device_pb2.Event) -> None:
        """Sends an event on every Execute stream."""
        payload = device_pb2.ExecuteResponse(event=event).SerializeToString()
        for attachment in self.attachments:
            attachment.announce(payload)

    def _guard(self, method: str, behaviour: Any) -> Any:
        return guarded(NAME, method, behaviour, self._traffic)

    async def _using(self, target: Any, work: Callable[[Channel], Awaitable[Any]]) -> Any:
        """Runs `work` on the channel of a target (session token and device), keeping its session alive."""
        session = self._sessions.find(target.session_token)
        device = self._supervisor.find(target.device)
        with self._sessions.using(session):
            return await work(await device.channel(session))

    def _check_code(self, handle: Any) -> Any:
        async def checked(request: device_pb2.LoadModuleRequest, context: Context) -> Any:
            size = len(request.command.code)
            if size > self._limits.max_code_bytes:
                raise refusals.too_large("LoadModule.code", size, self._limits.max_code_bytes, "max_code_bytes")
            return await handle(request, context)

        return checked

    # ---- Execute ----

    async def _execute(self, _: Any, context: Context) -> None:
        attach = execute.parse_attach(await context.read())
        session = self._sessions.find(attach.session_token)
        device = self._supervisor.find(attach.device)
        with self._sessions.using(session):
            channel = await device.channel(session, attaching=True)
            if channel.sink is not None:
                raise Refusal(
                    Reason.HANDLE_IN_USE,
                    f"Session {session.id} already has an Execute stream on device {device.ordinal}.",
                    fix="Use one Execute stream a session and device; end the other one first.",
                    details={"session": session.id, "device": device.ordinal},
                )
            window = self._limits.window
            attachment = execute.Attachment(context, session, channel, window, self._traffic.execute_traffic)
            channel.sink = attachment
            self.attachments.add(attachment)
            try:
                await attachment.prepare()
                await context.write(
                    device_pb2.ExecuteResponse(
                        attached=device_pb2.Attached(
                            generation=channel.link.generation,
                            last_seq=channel.last_seq,
                            max_batch_bytes=window.max_batch_bytes,
                            max_batches_in_flight=window.max_batches,
                        )
                    ).SerializeToString()
                )
                await attachment.run()
            finally:
                self.attachments.discard(attachment)
                attachment.detach()

    # ---- transfers ----

    async def _upload(self, messages: Any, context: Context) -> device_pb2.UploadResponse:
        first = await anext(messages, None)
        if first is None:
            raise refusals.malformed("The Upload has no message.", "Name session_token, device and transfer first.")
        head = transfer_streams.parse_upload(first)
        transfer_streams.check_transfer(head.transfer)

        async def work(channel: Channel) -> device_pb2.UploadResponse:
            return await transfer_streams.upload(
                first, messages, channel, head.transfer, self._limits.max_chunk_bytes, self._traffic.transfer_traffic
            )

        answer: device_pb2.UploadResponse = await self._using(head, work)
        return answer

    async def _download(self, request: device_pb2.DownloadRequest, context: Context) -> None:
        transfer_streams.check_transfer(request.transfer)

        async def work(channel: Channel) -> None:
            await transfer_streams.download(context, channel, request.transfer, self._traffic.transfer_traffic)

        await self._using(request, work)

    async def _write(self, messages: Any, context: Context) -> Any:
        first = await anext(messages, None)
        if first is None or not first.HasField("command"):
            raise refusals.malformed(
                "The Write has no command in its first message.", "Send target and command in the first message."
            )

        async def work(channel: Channel) -> Any:
            limits = self._limits
            return await transfer_streams.write(
                first, messages, channel, limits.max_inline_bytes, limits.max_chunk_bytes,
                self._traffic.transfer_traffic,
            )  # fmt: skip

        return await self._using(first.target, work)

    async def _read(self, request: device_pb2.ReadRequest, context: Context) -> None:
        async def work(channel: Channel) -> None:
            await transfer_streams.read(request, context, channel, self._traffic.transfer_traffic)

        await self._using(request.target, work)
