from hearth_proto.v1 import commands_pb2 as _commands_pb2
from hearth_proto.v1 import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Target(_message.Message):
    __slots__ = ("session_token", "device", "stream")
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    session_token: str
    device: int
    stream: int
    def __init__(self, session_token: _Optional[str] = ..., device: _Optional[int] = ..., stream: _Optional[int] = ...) -> None: ...

class ExecuteRequest(_message.Message):
    __slots__ = ("attach", "batch", "received")
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    attach: Attach
    batch: _commands_pb2.Batch
    received: Received
    def __init__(self, attach: _Optional[_Union[Attach, _Mapping]] = ..., batch: _Optional[_Union[_commands_pb2.Batch, _Mapping]] = ..., received: _Optional[_Union[Received, _Mapping]] = ...) -> None: ...

class Received(_message.Message):
    __slots__ = ("responses", "transfers")
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    responses: int
    transfers: _containers.RepeatedCompositeFieldContainer[TransferProgress]
    def __init__(self, responses: _Optional[int] = ..., transfers: _Optional[_Iterable[_Union[TransferProgress, _Mapping]]] = ...) -> None: ...

class TransferProgress(_message.Message):
    __slots__ = ("transfer", "bytes")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    transfer: int
    bytes: int
    def __init__(self, transfer: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("session_token", "device", "last_seq_acked", "resumable", "resume", "generation", "received")
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQ_ACKED_FIELD_NUMBER: _ClassVar[int]
    RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    session_token: str
    device: int
    last_seq_acked: int
    resumable: bool
    resume: bool
    generation: int
    received: int
    def __init__(self, session_token: _Optional[str] = ..., device: _Optional[int] = ..., last_seq_acked: _Optional[int] = ..., resumable: bool = ..., resume: bool = ..., generation: _Optional[int] = ..., received: _Optional[int] = ...) -> None: ...

class ExecuteResponse(_message.Message):
    __slots__ = ("attached", "ack", "result", "event")
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    attached: Attached
    ack: Ack
    result: _commands_pb2.Result
    event: Event
    def __init__(self, attached: _Optional[_Union[Attached, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., result: _Optional[_Union[_commands_pb2.Result, _Mapping]] = ..., event: _Optional[_Union[Event, _Mapping]] = ...) -> None: ...

class Attached(_message.Message):
    __slots__ = ("generation", "last_seq", "max_batch_bytes", "max_batches_in_flight", "resumed", "durable", "max_unacked_bytes", "lane")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQ_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCHES_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    MAX_UNACKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    generation: int
    last_seq: int
    max_batch_bytes: int
    max_batches_in_flight: int
    resumed: bool
    durable: _containers.RepeatedScalarFieldContainer[int]
    max_unacked_bytes: int
    lane: LaneOffer
    def __init__(self, generation: _Optional[int] = ..., last_seq: _Optional[int] = ..., max_batch_bytes: _Optional[int] = ..., max_batches_in_flight: _Optional[int] = ..., resumed: bool = ..., durable: _Optional[_Iterable[int]] = ..., max_unacked_bytes: _Optional[int] = ..., lane: _Optional[_Union[LaneOffer, _Mapping]] = ...) -> None: ...

class LaneOffer(_message.Message):
    __slots__ = ("path", "ticket", "valid_ns")
    PATH_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    VALID_NS_FIELD_NUMBER: _ClassVar[int]
    path: str
    ticket: bytes
    valid_ns: int
    def __init__(self, path: _Optional[str] = ..., ticket: _Optional[bytes] = ..., valid_ns: _Optional[int] = ...) -> None: ...

class AttachmentStatusRequest(_message.Message):
    __slots__ = ("session_token", "device", "generation")
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    session_token: str
    device: int
    generation: int
    def __init__(self, session_token: _Optional[str] = ..., device: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class AttachmentStatusResponse(_message.Message):
    __slots__ = ("known", "lane", "last_seq", "responses")
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQ_FIELD_NUMBER: _ClassVar[int]
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    known: bool
    lane: bool
    last_seq: int
    responses: int
    def __init__(self, known: bool = ..., lane: bool = ..., last_seq: _Optional[int] = ..., responses: _Optional[int] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("session_token", "device", "generation", "command")
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    session_token: str
    device: int
    generation: int
    command: _commands_pb2.Command
    def __init__(self, session_token: _Optional[str] = ..., device: _Optional[int] = ..., generation: _Optional[int] = ..., command: _Optional[_Union[_commands_pb2.Command, _Mapping]] = ...) -> None: ...

class OpenBulkRequest(_message.Message):
    __slots__ = ("session_token", "device", "generation", "stripes")
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STRIPES_FIELD_NUMBER: _ClassVar[int]
    session_token: str
    device: int
    generation: int
    stripes: int
    def __init__(self, session_token: _Optional[str] = ..., device: _Optional[int] = ..., generation: _Optional[int] = ..., stripes: _Optional[int] = ...) -> None: ...

class OpenBulkResponse(_message.Message):
    __slots__ = ("tickets", "valid_ns", "path", "host", "port", "certificate", "max_chunk_bytes", "max_segment_bytes", "transfers")
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    VALID_NS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    tickets: _containers.RepeatedScalarFieldContainer[bytes]
    valid_ns: int
    path: str
    host: str
    port: int
    certificate: bytes
    max_chunk_bytes: int
    max_segment_bytes: int
    transfers: bool
    def __init__(self, tickets: _Optional[_Iterable[bytes]] = ..., valid_ns: _Optional[int] = ..., path: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., certificate: _Optional[bytes] = ..., max_chunk_bytes: _Optional[int] = ..., max_segment_bytes: _Optional[int] = ..., transfers: bool = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("seq",)
    SEQ_FIELD_NUMBER: _ClassVar[int]
    seq: int
    def __init__(self, seq: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("device_lost", "draining", "protocol_error", "output")
    DEVICE_LOST_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_ERROR_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    device_lost: DeviceLost
    draining: Draining
    protocol_error: _status_pb2.Status
    output: Output
    def __init__(self, device_lost: _Optional[_Union[DeviceLost, _Mapping]] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ..., protocol_error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., output: _Optional[_Union[Output, _Mapping]] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class DeviceLost(_message.Message):
    __slots__ = ("device", "generation", "status", "in_flight")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    device: int
    generation: int
    status: _status_pb2.Status
    in_flight: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, device: _Optional[int] = ..., generation: _Optional[int] = ..., status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., in_flight: _Optional[_Iterable[str]] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ("deadline_ns",)
    DEADLINE_NS_FIELD_NUMBER: _ClassVar[int]
    deadline_ns: int
    def __init__(self, deadline_ns: _Optional[int] = ...) -> None: ...

class UploadRequest(_message.Message):
    __slots__ = ("session_token", "device", "transfer", "data", "offset", "resumable", "size")
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    session_token: str
    device: int
    transfer: int
    data: bytes
    offset: int
    resumable: bool
    size: int
    def __init__(self, session_token: _Optional[str] = ..., device: _Optional[int] = ..., transfer: _Optional[int] = ..., data: _Optional[bytes] = ..., offset: _Optional[int] = ..., resumable: bool = ..., size: _Optional[int] = ...) -> None: ...

class UploadResponse(_message.Message):
    __slots__ = ("received",)
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    received: int
    def __init__(self, received: _Optional[int] = ...) -> None: ...

class DownloadRequest(_message.Message):
    __slots__ = ("session_token", "device", "transfer", "offset", "resumable")
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    session_token: str
    device: int
    transfer: int
    offset: int
    resumable: bool
    def __init__(self, session_token: _Optional[str] = ..., device: _Optional[int] = ..., transfer: _Optional[int] = ..., offset: _Optional[int] = ..., resumable: bool = ...) -> None: ...

class TransferStatusRequest(_message.Message):
    __slots__ = ("session_token", "device", "transfer", "give_up")
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    GIVE_UP_FIELD_NUMBER: _ClassVar[int]
    session_token: str
    device: int
    transfer: int
    give_up: bool
    def __init__(self, session_token: _Optional[str] = ..., device: _Optional[int] = ..., transfer: _Optional[int] = ..., give_up: bool = ...) -> None: ...

class TransferStatusResponse(_message.Message):
    __slots__ = ("known", "received", "complete")
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    known: bool
    received: int
    complete: bool
    def __init__(self, known: bool = ..., received: _Optional[int] = ..., complete: bool = ...) -> None: ...

class DownloadResponse(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class AllocateRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.Allocate
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.Allocate, _Mapping]] = ...) -> None: ...

class FreeRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.Free
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.Free, _Mapping]] = ...) -> None: ...

class WriteRequest(_message.Message):
    __slots__ = ("target", "command", "data")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.Write
    data: bytes
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.Write, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.Read
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.Read, _Mapping]] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class CopyRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.Copy
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.Copy, _Mapping]] = ...) -> None: ...

class FillRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.Fill
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.Fill, _Mapping]] = ...) -> None: ...

class WritePointersRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.WritePointers
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.WritePointers, _Mapping]] = ...) -> None: ...

class CreateStreamRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.CreateStream
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.CreateStream, _Mapping]] = ...) -> None: ...

class DestroyStreamRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.DestroyStream
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.DestroyStream, _Mapping]] = ...) -> None: ...

class RecordEventRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.RecordEvent
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.RecordEvent, _Mapping]] = ...) -> None: ...

class WaitEventRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.WaitEvent
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.WaitEvent, _Mapping]] = ...) -> None: ...

class QueryEventRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.QueryEvent
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.QueryEvent, _Mapping]] = ...) -> None: ...

class ElapsedTimeRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.ElapsedTime
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.ElapsedTime, _Mapping]] = ...) -> None: ...

class DestroyEventRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.DestroyEvent
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.DestroyEvent, _Mapping]] = ...) -> None: ...

class LoadModuleRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.LoadModule
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.LoadModule, _Mapping]] = ...) -> None: ...

class UnloadModuleRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.UnloadModule
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.UnloadModule, _Mapping]] = ...) -> None: ...

class GetFunctionRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.GetFunction
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.GetFunction, _Mapping]] = ...) -> None: ...

class GetGlobalRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.GetGlobal
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.GetGlobal, _Mapping]] = ...) -> None: ...

class LaunchRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.Launch
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.Launch, _Mapping]] = ...) -> None: ...

class SyncRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.Sync
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.Sync, _Mapping]] = ...) -> None: ...

class FlushRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.Flush
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.Flush, _Mapping]] = ...) -> None: ...

class MemoryUsageRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.MemoryUsage
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.MemoryUsage, _Mapping]] = ...) -> None: ...

class MemoryCleanupRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.MemoryCleanup
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.MemoryCleanup, _Mapping]] = ...) -> None: ...

class StartProfileRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.StartProfile
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.StartProfile, _Mapping]] = ...) -> None: ...

class EndProfileRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.EndProfile
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.EndProfile, _Mapping]] = ...) -> None: ...

class AllReduceRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.AllReduce
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.AllReduce, _Mapping]] = ...) -> None: ...

class SyncCollectiveRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.SyncCollective
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.SyncCollective, _Mapping]] = ...) -> None: ...

class CollectiveRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.Collective
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.Collective, _Mapping]] = ...) -> None: ...

class DispatchRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.Dispatch
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.Dispatch, _Mapping]] = ...) -> None: ...

class BeginCaptureRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.BeginCapture
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.BeginCapture, _Mapping]] = ...) -> None: ...

class EndCaptureRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.EndCapture
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.EndCapture, _Mapping]] = ...) -> None: ...

class BeginConditionalRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.BeginConditional
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.BeginConditional, _Mapping]] = ...) -> None: ...

class EndConditionalRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.EndConditional
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.EndConditional, _Mapping]] = ...) -> None: ...

class BeginBranchRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.BeginBranch
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.BeginBranch, _Mapping]] = ...) -> None: ...

class LaunchGraphRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.LaunchGraph
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.LaunchGraph, _Mapping]] = ...) -> None: ...

class UpdateGraphRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.UpdateGraph
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.UpdateGraph, _Mapping]] = ...) -> None: ...

class DestroyGraphRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.DestroyGraph
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.DestroyGraph, _Mapping]] = ...) -> None: ...

class PrepareRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.Prepare
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.Prepare, _Mapping]] = ...) -> None: ...

class LaunchPreparedRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.LaunchPrepared
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.LaunchPrepared, _Mapping]] = ...) -> None: ...

class DestroyPreparedRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.DestroyPrepared
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.DestroyPrepared, _Mapping]] = ...) -> None: ...

class CreateTensorMapRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.CreateTensorMap
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.CreateTensorMap, _Mapping]] = ...) -> None: ...

class DestroyTensorMapRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.DestroyTensorMap
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.DestroyTensorMap, _Mapping]] = ...) -> None: ...

class OccupancyRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.Occupancy
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.Occupancy, _Mapping]] = ...) -> None: ...

class SetAllocationModeRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.SetAllocationMode
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.SetAllocationMode, _Mapping]] = ...) -> None: ...

class StartTraceRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.StartTrace
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.StartTrace, _Mapping]] = ...) -> None: ...

class EndTraceRequest(_message.Message):
    __slots__ = ("target", "command")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    target: Target
    command: _commands_pb2.EndTrace
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., command: _Optional[_Union[_commands_pb2.EndTrace, _Mapping]] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("target", "buffer", "name", "tenants", "description", "replace")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    target: Target
    buffer: int
    name: str
    tenants: _containers.RepeatedScalarFieldContainer[str]
    description: bytes
    replace: bool
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., buffer: _Optional[int] = ..., name: _Optional[str] = ..., tenants: _Optional[_Iterable[str]] = ..., description: _Optional[bytes] = ..., replace: bool = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnpublishRequest(_message.Message):
    __slots__ = ("target", "name")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    target: Target
    name: str
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., name: _Optional[str] = ...) -> None: ...

class UnpublishResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AttachBufferRequest(_message.Message):
    __slots__ = ("target", "buffer", "name", "tenant")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    target: Target
    buffer: int
    name: str
    tenant: str
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., buffer: _Optional[int] = ..., name: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class AttachBufferResponse(_message.Message):
    __slots__ = ("size", "description", "protected", "generation")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PROTECTED_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    size: int
    description: bytes
    protected: bool
    generation: int
    def __init__(self, size: _Optional[int] = ..., description: _Optional[bytes] = ..., protected: bool = ..., generation: _Optional[int] = ...) -> None: ...

class ExportIpcRequest(_message.Message):
    __slots__ = ("target", "buffer", "export")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    EXPORT_FIELD_NUMBER: _ClassVar[int]
    target: Target
    buffer: int
    export: int
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., buffer: _Optional[int] = ..., export: _Optional[int] = ...) -> None: ...

class ExportIpcResponse(_message.Message):
    __slots__ = ("path", "ticket", "valid_ns", "size", "allocation_bytes", "generation")
    PATH_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    VALID_NS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    path: str
    ticket: bytes
    valid_ns: int
    size: int
    allocation_bytes: int
    generation: int
    def __init__(self, path: _Optional[str] = ..., ticket: _Optional[bytes] = ..., valid_ns: _Optional[int] = ..., size: _Optional[int] = ..., allocation_bytes: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class ReleaseIpcRequest(_message.Message):
    __slots__ = ("target", "export")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    EXPORT_FIELD_NUMBER: _ClassVar[int]
    target: Target
    export: int
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., export: _Optional[int] = ...) -> None: ...

class ReleaseIpcResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPublishedRequest(_message.Message):
    __slots__ = ("target",)
    TARGET_FIELD_NUMBER: _ClassVar[int]
    target: Target
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ...) -> None: ...

class ListPublishedResponse(_message.Message):
    __slots__ = ("buffers",)
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    buffers: _containers.RepeatedCompositeFieldContainer[PublishedBuffer]
    def __init__(self, buffers: _Optional[_Iterable[_Union[PublishedBuffer, _Mapping]]] = ...) -> None: ...

class PublishedBuffer(_message.Message):
    __slots__ = ("name", "tenant", "size", "description", "attached")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    name: str
    tenant: str
    size: int
    description: bytes
    attached: int
    def __init__(self, name: _Optional[str] = ..., tenant: _Optional[str] = ..., size: _Optional[int] = ..., description: _Optional[bytes] = ..., attached: _Optional[int] = ...) -> None: ...
