"""DeviceService: Execute, the transfer streams and the single calls, registered as one table of handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import grpc
import grpc.aio
from google.protobuf.message import Message

from hearth_proto import rights
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.rights import Right
from hearth_proto.v1 import commands_pb2, device_pb2, node_pb2
from hearthd.front import errors
from hearthd.front.admission.gate import AdmissionGate, GatedService
from hearthd.front.errors import Context
from hearthd.front.lanes.listener import LanePort
from hearthd.front.rpc import execute, transfer_streams, unary
from hearthd.front.rpc.bulk_service import BulkService
from hearthd.front.rpc.ipc_service import IpcService
from hearthd.front.rpc.publish_service import PublishService
from hearthd.front.rpc.server_call import (
    Behaviour,
    CallObserver,
    RequestStream,
    StreamClosed,
    SubjectEnded,
    decoder,
    guarded,
    serialize,
    unary_handlers,
)
from hearthd.front.sessions import attach
from hearthd.front.sessions.channel import Channel
from hearthd.front.sessions.lane import UnusedLanes
from hearthd.front.sessions.session import Session, SessionEnd
from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.supervisor.supervisor import Supervisor

NAME = "hearth.v1.DeviceService"

_RIGHTS: Mapping[str, tuple[Right, ...]] = {
    **rights.CALLS,
    "Write": rights.COMMANDS["write"],
    "Read": rights.COMMANDS["read"],
    **{call.rpc: rights.COMMANDS[call.command] for call in unary.CALLS},
}
"""Rights that each method needs, all of them."""
_WORK_RIGHTS = frozenset({Right.ALLOCATE, Right.WRITE, Right.LAUNCH, Right.COLLECTIVE, Right.ATTACH})
"""Operations that need one of these rights are new work. They are refused to tenants that have used up their GPU
seconds."""


class TrafficObserver(CallObserver, Protocol):
    """Counts calls and bytes."""

    def execute_traffic(self, batches: int, received: int, sent: int) -> None:
        """Counts `batches` with the bytes `received` for them or, if `batches` is 0, `sent` bytes of responses.

        Batches over a lane count without bytes.
        """
        ...

    def transfer_traffic(self, received: int, sent: int) -> None:
        """Counts data bytes of a transfer that were received from the client or sent to it."""
        ...

    def lane_unused(self) -> None:
        """Counts a lane that ended before a batch was sent over it."""


@dataclass(frozen=True)
class ClientLimits:
    """The limits that the daemon announces to clients and enforces."""

    max_inline_bytes: int = 1 << 20
    max_chunk_bytes: int = 1 << 20
    max_code_bytes: int = 16 << 20
    window: attach.ExecuteWindow = field(default_factory=attach.ExecuteWindow)

    def message(self) -> node_pb2.SessionLimits:
        """Returns the limits in the form in which a session's client receives them."""
        return node_pb2.SessionLimits(
            max_inline_bytes=self.max_inline_bytes,
            max_chunk_bytes=self.max_chunk_bytes,
            max_batch_bytes=self.window.max_batch_bytes,
            max_batches_in_flight=self.window.max_batches,
            max_code_bytes=self.max_code_bytes,
        )


class DeviceService:
    """The gRPC service for work on devices."""

    def __init__(
        self,
        sessions: SessionTable,
        supervisor: Supervisor,
        limits: ClientLimits,
        traffic: TrafficObserver,
        lanes: LanePort,
        bulk: BulkService,
        gate: AdmissionGate,
    ) -> None:
        self._gate = gate
        self._sessions = sessions
        self._supervisor = supervisor
        self.limits = limits
        """Limits of the calls and streams that begin from now on."""
        self._traffic = traffic
        self._lanes = lanes
        self._bulk = bulk
        self._unused_lanes = UnusedLanes(traffic.lane_unused)
        self.attachments: set[execute.ExecuteAttachment] = set()
        self.publishing = PublishService(sessions, supervisor, self.with_channel)
        self._ipc = IpcService(sessions, supervisor, self.with_channel, lanes)
        self.greeting: Callable[[], device_pb2.Event] | None = None
        """Returns the first event of every new Execute stream, if the daemon drains. None: there is no such event."""

    def handler(self) -> GatedService:
        """Returns the service for the gRPC server to register.

        The messages of Execute, Upload, Download and Read are passed as bytes, without decoding.
        """
        behaviours: dict[str, Behaviour] = {
            "AttachmentStatus": self._attachment_status,
            "Cancel": self._cancel,
            "TransferStatus": self._transfer_status,
            **self.publishing.behaviours(),
            **self._bulk.behaviours(),
            **self._ipc.behaviours(),
        }
        behaviours |= {call.rpc: unary.behaviour(call, self.with_channel) for call in unary.CALLS}
        behaviours["LoadModule"] = self._check_code(behaviours["LoadModule"])
        handlers: dict[str, Any] = {
            "Execute": grpc.stream_stream_rpc_method_handler(self._guard("Execute", self._execute)),
            "Upload": grpc.stream_unary_rpc_method_handler(
                self._guard("Upload", self._upload), response_serializer=serialize
            ),
            "Download": grpc.unary_stream_rpc_method_handler(
                self._guard("Download", self._download), request_deserializer=decoder(device_pb2.DownloadRequest)
            ),
            "Write": grpc.stream_unary_rpc_method_handler(
                self._guard("Write", self._write),
                request_deserializer=decoder(device_pb2.WriteRequest),
                response_serializer=serialize,
            ),
            "Read": grpc.unary_stream_rpc_method_handler(
                self._guard("Read", self._read), request_deserializer=decoder(device_pb2.ReadRequest)
            ),
            **unary_handlers(device_pb2, behaviours, self._guard),
        }
        return self._gate.service(NAME, handlers)

    def announce(self, event: device_pb2.Event) -> None:
        """Sends an event on every Execute stream."""
        payload = device_pb2.ExecuteResponse(event=event).SerializeToString()
        for attachment in self.attachments:
            attachment.announce(payload)

    def _greet(self, attachment: execute.ExecuteAttachment) -> None:
        if self.greeting is not None:
            attachment.announce(device_pb2.ExecuteResponse(event=self.greeting()).SerializeToString())

    def _guard(self, method: str, behaviour: Behaviour) -> Behaviour:
        return guarded(self._gate.method_gate(NAME, method), behaviour, self._traffic)

    async def with_channel(self, target: Any, work: Callable[[Channel], Awaitable[Any]], method: str) -> Any:
        """Runs `work` on the channel of a target (session token and device), and keeps the session alive meanwhile.

        Raises `PERMISSION_DENIED` if the tenant lacks one of the rights that `method` needs, and `QUOTA_EXCEEDED` if
        its device time is used up and the method is new work. Holding objects and reading results stays allowed.
        """
        needed = _RIGHTS[method]
        session = self._sessions.find(target.session_token)
        device = self._supervisor.find(target.device, session.tenant)
        self._sessions.require(session, needed, method)
        if any(right in _WORK_RIGHTS for right in needed):
            self._sessions.accounts.of(session.tenant).check_time()
        with self._sessions.keep_alive(session):
            return await work(await device.channel(session))

    def _open_channel(self, target: Any) -> Channel | None:
        """Returns the channel that the session of a target has on its device. Opens none, unlike `with_channel`."""
        session = self._sessions.find(target.session_token)
        device = self._supervisor.find(target.device, session.tenant)
        return session.channels.get(device.ordinal)

    def _check_code(self, handle: Behaviour) -> Behaviour:
        async def handle_checked(request: device_pb2.LoadModuleRequest, context: Context) -> Any:
            size = len(request.command.code)
            if size > self.limits.max_code_bytes:
                raise errors.too_large("LoadModule.code", size, self.limits.max_code_bytes, "max_code_bytes")
            return await handle(request, context)

        return handle_checked

    # ---- Execute ----

    async def _execute(self, first: bytes | None, context: Context) -> None:
        request = attach.parse(first)
        session = self._sessions.find(request.session_token)
        device = self._supervisor.find(request.device, session.tenant)
        if not request.resume:
            self._sessions.accounts.of(session.tenant).check_time()
        with self._sessions.keep_alive(session):
            if request.resume:
                try:
                    channel = await attach.resume_channel(session, request)
                except Refusal as refusal:
                    # A quarantined session has no channels, and its client may notice the end of a lane before the
                    # cause of that end.
                    raise device.quarantine_refusal(session) or refusal from None
            else:
                channel = await device.channel(session, attaching=True)
                await attach.begin(session, device.ordinal, channel, request.resumable, self.limits.window)
            window = self.limits.window
            attachment = execute.ExecuteAttachment(
                context, session, channel, window, self._traffic.execute_traffic, self._unused_lanes.add
            )
            channel.attach_sink(attachment)
            self.attachments.add(attachment)
            offer: device_pb2.LaneOffer | None = None
            try:
                if request.resume:
                    attachment.resume(request.last_seq_acked)
                account = self._sessions.accounts.of(session.tenant)
                if account.exhausted:  # also while a new stream waited for its process
                    attachment.on_lost(account.time_refusal(), b"")
                self._greet(attachment)
                if not request.resume:
                    await attachment.prepare()
                if self._may_have_lane(session, channel, context):
                    offer = self._lanes.offer(attachment)
                    attachment.void_ticket = partial(self._lanes.withdraw, offer)
                await context.write(
                    device_pb2.ExecuteResponse(
                        attached=device_pb2.Attached(
                            generation=channel.link.generation,
                            last_seq=channel.batches.last,
                            max_batch_bytes=window.max_batch_bytes,
                            max_batches_in_flight=window.max_batches,
                            max_unacked_bytes=window.max_unacked_bytes,
                            resumed=request.resume,
                            durable=channel.durable,
                            lane=offer,
                        )
                    ).SerializeToString()
                )
                await _run_execute(attachment)
            finally:
                self._lanes.withdraw(offer)
                self.attachments.discard(attachment)
                attachment.detach()

    def _may_have_lane(self, session: Session, channel: Channel, context: Context) -> bool:
        """Returns True if batches of the attachment may go to the device process without passing through the front."""
        return (
            channel.replies is not None
            and channel.loss is None
            and channel.link.takes_lanes
            and session.queue.unbounded
            and not self._sessions.draining
            and context.peer().startswith("unix:")
        )

    async def _attachment_status(
        self, request: device_pb2.AttachmentStatusRequest, context: Context
    ) -> device_pb2.AttachmentStatusResponse:
        channel = self._open_channel(request)
        if channel is None or channel.link.generation != request.generation:
            return device_pb2.AttachmentStatusResponse()
        return channel.status()

    async def _cancel(self, request: device_pb2.CancelRequest, context: Context) -> commands_pb2.Done:
        channel = self._open_channel(request)
        command = request.command
        if command.WhichOneof("kind") != "cancel" or not command.request:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"The command to put into effect is {command.WhichOneof('kind') or 'empty'} with request number "
                f"{command.request}; it must be a Cancel with a request number.",
                fix="Send the Cancel in a batch of Execute, and the same command in this call.",
                fields=["command.cancel", "command.request"],
            )
        if channel is not None and channel.link.generation == request.generation:
            channel.cancel(command)
        return commands_pb2.Done()

    # ---- transfers ----

    async def _upload(self, first: bytes | None, context: Context) -> device_pb2.UploadResponse:
        if first is None:
            raise errors.malformed("The Upload has no message.", "Name session_token, device and transfer first.")
        head = transfer_streams.parse_upload(first)
        transfer_streams.check_transfer(head.transfer)
        work = partial(
            transfer_streams.upload,
            first,
            head,
            RequestStream(context),
            resume_s=self._resume_s(head),
            max_chunk_bytes=self.limits.max_chunk_bytes,
            on_bytes=self._traffic.transfer_traffic,
        )
        answer: device_pb2.UploadResponse = await self.with_channel(head, work, "Upload")
        return answer

    async def _download(self, request: device_pb2.DownloadRequest, context: Context) -> None:
        transfer_streams.check_transfer(request.transfer)
        resume_s, on_bytes = self._resume_s(request), self._traffic.transfer_traffic
        work = partial(transfer_streams.download, request, context, resume_s=resume_s, on_bytes=on_bytes)
        await self.with_channel(request, work, "Download")

    def _resume_s(self, request: device_pb2.UploadRequest | device_pb2.DownloadRequest) -> float:
        """Returns the time, in seconds, that a transfer waits for another stream if its stream breaks.

        0: it does not wait.
        """
        return self._sessions.find(request.session_token).lease if request.resumable else 0.0

    async def _transfer_status(
        self, request: device_pb2.TransferStatusRequest, context: Context
    ) -> device_pb2.TransferStatusResponse:
        transfer_streams.check_transfer(request.transfer)
        channel = self._open_channel(request)
        if channel is None:
            return device_pb2.TransferStatusResponse()
        if request.give_up:
            channel.transfers.cancel(request.transfer)
        known, received, complete = channel.transfers.status(request.transfer)
        return device_pb2.TransferStatusResponse(known=known, received=received, complete=complete)

    async def _write(self, first: device_pb2.WriteRequest | None, context: Context) -> Any:
        if first is None or not first.HasField("command"):
            raise errors.malformed(
                "The Write has no command in its first message.", "Send target and command in the first message."
            )
        _check_inline("Write", first.command)
        work = partial(
            transfer_streams.write,
            first,
            RequestStream(context, decoder(device_pb2.WriteRequest)),
            max_inline_bytes=self.limits.max_inline_bytes,
            max_chunk_bytes=self.limits.max_chunk_bytes,
            on_bytes=self._traffic.transfer_traffic,
        )
        return await self.with_channel(first.target, work, "Write")

    async def _read(self, request: device_pb2.ReadRequest, context: Context) -> None:
        _check_inline("Read", request.command)
        work = partial(transfer_streams.read, request, context, on_bytes=self._traffic.transfer_traffic)
        await self.with_channel(request.target, work, "Read")


async def _run_execute(attachment: execute.ExecuteAttachment) -> None:
    """Runs an Execute stream.

    Raises `StreamClosed` or `SubjectEnded` at a regular end, otherwise the cause of the end.
    """
    try:
        await attachment.run()
    except asyncio.CancelledError:
        if attachment.idle:
            raise StreamClosed from None
        raise
    except Refusal as refusal:
        if attachment.session.ended_by is SessionEnd.CLIENT:
            raise SubjectEnded(refusal) from None
        raise


def _check_inline(call: str, command: Message) -> None:
    """Raises `INVALID_ARGUMENT` if a call that carries its bytes itself names shared memory."""
    if command.HasField("shared"):
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"The single call {call} carries its bytes inline, and also names shared memory.",
            fix=f"Leave Shared out, or send the {call} in a batch of Execute.",
            fields=["command.shared"],
        )
