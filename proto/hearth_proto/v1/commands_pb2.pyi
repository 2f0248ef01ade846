from hearth_proto.v1 import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AllocationMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ALLOCATION_MODE_UNSPECIFIED: _ClassVar[AllocationMode]
    ALLOCATION_MODE_AUTO: _ClassVar[AllocationMode]
    ALLOCATION_MODE_PERSISTENT: _ClassVar[AllocationMode]

class CodeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CODE_KIND_UNSPECIFIED: _ClassVar[CodeKind]
    CODE_KIND_CUDA_CPP: _ClassVar[CodeKind]
    CODE_KIND_PTX: _ClassVar[CodeKind]
    CODE_KIND_CUBIN: _ClassVar[CodeKind]
    CODE_KIND_FATBIN: _ClassVar[CodeKind]
    CODE_KIND_LTO_IR: _ClassVar[CodeKind]
    CODE_KIND_LIBRARY: _ClassVar[CodeKind]

class LaunchMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LAUNCH_MODE_CHECKED: _ClassVar[LaunchMode]
    LAUNCH_MODE_VALIDATE: _ClassVar[LaunchMode]
    LAUNCH_MODE_UNCHECKED: _ClassVar[LaunchMode]

class AccessProperty(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACCESS_PROPERTY_NORMAL: _ClassVar[AccessProperty]
    ACCESS_PROPERTY_STREAMING: _ClassVar[AccessProperty]
    ACCESS_PROPERTY_PERSISTING: _ClassVar[AccessProperty]

class MemSyncDomain(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEM_SYNC_DOMAIN_DEFAULT: _ClassVar[MemSyncDomain]
    MEM_SYNC_DOMAIN_REMOTE: _ClassVar[MemSyncDomain]

class ReduceOp(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REDUCE_OP_UNSPECIFIED: _ClassVar[ReduceOp]
    REDUCE_OP_SUM: _ClassVar[ReduceOp]
    REDUCE_OP_MEAN: _ClassVar[ReduceOp]
    REDUCE_OP_MIN: _ClassVar[ReduceOp]
    REDUCE_OP_MAX: _ClassVar[ReduceOp]
    REDUCE_OP_PROD: _ClassVar[ReduceOp]
    REDUCE_OP_PREMUL_SUM: _ClassVar[ReduceOp]

class CollectiveKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COLLECTIVE_KIND_UNSPECIFIED: _ClassVar[CollectiveKind]
    COLLECTIVE_KIND_ALL_REDUCE: _ClassVar[CollectiveKind]
    COLLECTIVE_KIND_REDUCE: _ClassVar[CollectiveKind]
    COLLECTIVE_KIND_BROADCAST: _ClassVar[CollectiveKind]
    COLLECTIVE_KIND_ALL_GATHER: _ClassVar[CollectiveKind]
    COLLECTIVE_KIND_REDUCE_SCATTER: _ClassVar[CollectiveKind]
    COLLECTIVE_KIND_ALL_TO_ALL: _ClassVar[CollectiveKind]
    COLLECTIVE_KIND_GATHER: _ClassVar[CollectiveKind]
    COLLECTIVE_KIND_SCATTER: _ClassVar[CollectiveKind]
    COLLECTIVE_KIND_SEND: _ClassVar[CollectiveKind]
    COLLECTIVE_KIND_RECV: _ClassVar[CollectiveKind]
    COLLECTIVE_KIND_BARRIER: _ClassVar[CollectiveKind]
ALLOCATION_MODE_UNSPECIFIED: AllocationMode
ALLOCATION_MODE_AUTO: AllocationMode
ALLOCATION_MODE_PERSISTENT: AllocationMode
CODE_KIND_UNSPECIFIED: CodeKind
CODE_KIND_CUDA_CPP: CodeKind
CODE_KIND_PTX: CodeKind
CODE_KIND_CUBIN: CodeKind
CODE_KIND_FATBIN: CodeKind
CODE_KIND_LTO_IR: CodeKind
CODE_KIND_LIBRARY: CodeKind
LAUNCH_MODE_CHECKED: LaunchMode
LAUNCH_MODE_VALIDATE: LaunchMode
LAUNCH_MODE_UNCHECKED: LaunchMode
ACCESS_PROPERTY_NORMAL: AccessProperty
ACCESS_PROPERTY_STREAMING: AccessProperty
ACCESS_PROPERTY_PERSISTING: AccessProperty
MEM_SYNC_DOMAIN_DEFAULT: MemSyncDomain
MEM_SYNC_DOMAIN_REMOTE: MemSyncDomain
REDUCE_OP_UNSPECIFIED: ReduceOp
REDUCE_OP_SUM: ReduceOp
REDUCE_OP_MEAN: ReduceOp
REDUCE_OP_MIN: ReduceOp
REDUCE_OP_MAX: ReduceOp
REDUCE_OP_PROD: ReduceOp
REDUCE_OP_PREMUL_SUM: ReduceOp
COLLECTIVE_KIND_UNSPECIFIED: CollectiveKind
COLLECTIVE_KIND_ALL_REDUCE: CollectiveKind
COLLECTIVE_KIND_REDUCE: CollectiveKind
COLLECTIVE_KIND_BROADCAST: CollectiveKind
COLLECTIVE_KIND_ALL_GATHER: CollectiveKind
COLLECTIVE_KIND_REDUCE_SCATTER: CollectiveKind
COLLECTIVE_KIND_ALL_TO_ALL: CollectiveKind
COLLECTIVE_KIND_GATHER: CollectiveKind
COLLECTIVE_KIND_SCATTER: CollectiveKind
COLLECTIVE_KIND_SEND: CollectiveKind
COLLECTIVE_KIND_RECV: CollectiveKind
COLLECTIVE_KIND_BARRIER: CollectiveKind

class Batch(_message.Message):
    __slots__ = ("seq", "commands")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    def __init__(self, seq: _Optional[int] = ..., commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("request", "stream", "launches", "allocate", "free", "write", "read", "copy", "fill", "create_stream", "destroy_stream", "record_event", "wait_event", "query_event", "elapsed_time", "destroy_event", "load_module", "get_function", "get_global", "unload_module", "describe_module", "describe_function", "launch", "sync", "flush", "memory_usage", "memory_cleanup", "start_profile", "end_profile", "all_reduce", "sync_collective", "dispatch", "begin_capture", "end_capture", "launch_graph", "update_graph", "destroy_graph", "prepare", "launch_prepared", "destroy_prepared", "create_tensor_map", "destroy_tensor_map", "occupancy", "set_allocation_mode", "start_trace", "end_trace", "set_durable", "checkpoint", "collective", "cancel", "write_pointers", "publish_event", "attach_event", "begin_conditional", "end_conditional", "begin_branch")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    LAUNCHES_FIELD_NUMBER: _ClassVar[int]
    ALLOCATE_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    FILL_FIELD_NUMBER: _ClassVar[int]
    CREATE_STREAM_FIELD_NUMBER: _ClassVar[int]
    DESTROY_STREAM_FIELD_NUMBER: _ClassVar[int]
    RECORD_EVENT_FIELD_NUMBER: _ClassVar[int]
    WAIT_EVENT_FIELD_NUMBER: _ClassVar[int]
    QUERY_EVENT_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_TIME_FIELD_NUMBER: _ClassVar[int]
    DESTROY_EVENT_FIELD_NUMBER: _ClassVar[int]
    LOAD_MODULE_FIELD_NUMBER: _ClassVar[int]
    GET_FUNCTION_FIELD_NUMBER: _ClassVar[int]
    GET_GLOBAL_FIELD_NUMBER: _ClassVar[int]
    UNLOAD_MODULE_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_MODULE_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_FUNCTION_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USAGE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_CLEANUP_FIELD_NUMBER: _ClassVar[int]
    START_PROFILE_FIELD_NUMBER: _ClassVar[int]
    END_PROFILE_FIELD_NUMBER: _ClassVar[int]
    ALL_REDUCE_FIELD_NUMBER: _ClassVar[int]
    SYNC_COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_FIELD_NUMBER: _ClassVar[int]
    BEGIN_CAPTURE_FIELD_NUMBER: _ClassVar[int]
    END_CAPTURE_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_GRAPH_FIELD_NUMBER: _ClassVar[int]
    UPDATE_GRAPH_FIELD_NUMBER: _ClassVar[int]
    DESTROY_GRAPH_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_PREPARED_FIELD_NUMBER: _ClassVar[int]
    DESTROY_PREPARED_FIELD_NUMBER: _ClassVar[int]
    CREATE_TENSOR_MAP_FIELD_NUMBER: _ClassVar[int]
    DESTROY_TENSOR_MAP_FIELD_NUMBER: _ClassVar[int]
    OCCUPANCY_FIELD_NUMBER: _ClassVar[int]
    SET_ALLOCATION_MODE_FIELD_NUMBER: _ClassVar[int]
    START_TRACE_FIELD_NUMBER: _ClassVar[int]
    END_TRACE_FIELD_NUMBER: _ClassVar[int]
    SET_DURABLE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    WRITE_POINTERS_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_EVENT_FIELD_NUMBER: _ClassVar[int]
    ATTACH_EVENT_FIELD_NUMBER: _ClassVar[int]
    BEGIN_CONDITIONAL_FIELD_NUMBER: _ClassVar[int]
    END_CONDITIONAL_FIELD_NUMBER: _ClassVar[int]
    BEGIN_BRANCH_FIELD_NUMBER: _ClassVar[int]
    request: int
    stream: int
    launches: bytes
    allocate: Allocate
    free: Free
    write: Write
    read: Read
    copy: Copy
    fill: Fill
    create_stream: CreateStream
    destroy_stream: DestroyStream
    record_event: RecordEvent
    wait_event: WaitEvent
    query_event: QueryEvent
    elapsed_time: ElapsedTime
    destroy_event: DestroyEvent
    load_module: LoadModule
    get_function: GetFunction
    get_global: GetGlobal
    unload_module: UnloadModule
    describe_module: DescribeModule
    describe_function: DescribeFunction
    launch: Launch
    sync: Sync
    flush: Flush
    memory_usage: MemoryUsage
    memory_cleanup: MemoryCleanup
    start_profile: StartProfile
    end_profile: EndProfile
    all_reduce: AllReduce
    sync_collective: SyncCollective
    dispatch: Dispatch
    begin_capture: BeginCapture
    end_capture: EndCapture
    launch_graph: LaunchGraph
    update_graph: UpdateGraph
    destroy_graph: DestroyGraph
    prepare: Prepare
    launch_prepared: LaunchPrepared
    destroy_prepared: DestroyPrepared
    create_tensor_map: CreateTensorMap
    destroy_tensor_map: DestroyTensorMap
    occupancy: Occupancy
    set_allocation_mode: SetAllocationMode
    start_trace: StartTrace
    end_trace: EndTrace
    set_durable: SetDurable
    checkpoint: Checkpoint
    collective: Collective
    cancel: Cancel
    write_pointers: WritePointers
    publish_event: PublishEvent
    attach_event: AttachEvent
    begin_conditional: BeginConditional
    end_conditional: EndConditional
    begin_branch: BeginBranch
    def __init__(self, request: _Optional[int] = ..., stream: _Optional[int] = ..., launches: _Optional[bytes] = ..., allocate: _Optional[_Union[Allocate, _Mapping]] = ..., free: _Optional[_Union[Free, _Mapping]] = ..., write: _Optional[_Union[Write, _Mapping]] = ..., read: _Optional[_Union[Read, _Mapping]] = ..., copy: _Optional[_Union[Copy, _Mapping]] = ..., fill: _Optional[_Union[Fill, _Mapping]] = ..., create_stream: _Optional[_Union[CreateStream, _Mapping]] = ..., destroy_stream: _Optional[_Union[DestroyStream, _Mapping]] = ..., record_event: _Optional[_Union[RecordEvent, _Mapping]] = ..., wait_event: _Optional[_Union[WaitEvent, _Mapping]] = ..., query_event: _Optional[_Union[QueryEvent, _Mapping]] = ..., elapsed_time: _Optional[_Union[ElapsedTime, _Mapping]] = ..., destroy_event: _Optional[_Union[DestroyEvent, _Mapping]] = ..., load_module: _Optional[_Union[LoadModule, _Mapping]] = ..., get_function: _Optional[_Union[GetFunction, _Mapping]] = ..., get_global: _Optional[_Union[GetGlobal, _Mapping]] = ..., unload_module: _Optional[_Union[UnloadModule, _Mapping]] = ..., describe_module: _Optional[_Union[DescribeModule, _Mapping]] = ..., describe_function: _Optional[_Union[DescribeFunction, _Mapping]] = ..., launch: _Optional[_Union[Launch, _Mapping]] = ..., sync: _Optional[_Union[Sync, _Mapping]] = ..., flush: _Optional[_Union[Flush, _Mapping]] = ..., memory_usage: _Optional[_Union[MemoryUsage, _Mapping]] = ..., memory_cleanup: _Optional[_Union[MemoryCleanup, _Mapping]] = ..., start_profile: _Optional[_Union[StartProfile, _Mapping]] = ..., end_profile: _Optional[_Union[EndProfile, _Mapping]] = ..., all_reduce: _Optional[_Union[AllReduce, _Mapping]] = ..., sync_collective: _Optional[_Union[SyncCollective, _Mapping]] = ..., dispatch: _Optional[_Union[Dispatch, _Mapping]] = ..., begin_capture: _Optional[_Union[BeginCapture, _Mapping]] = ..., end_capture: _Optional[_Union[EndCapture, _Mapping]] = ..., launch_graph: _Optional[_Union[LaunchGraph, _Mapping]] = ..., update_graph: _Optional[_Union[UpdateGraph, _Mapping]] = ..., destroy_graph: _Optional[_Union[DestroyGraph, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., launch_prepared: _Optional[_Union[LaunchPrepared, _Mapping]] = ..., destroy_prepared: _Optional[_Union[DestroyPrepared, _Mapping]] = ..., create_tensor_map: _Optional[_Union[CreateTensorMap, _Mapping]] = ..., destroy_tensor_map: _Optional[_Union[DestroyTensorMap, _Mapping]] = ..., occupancy: _Optional[_Union[Occupancy, _Mapping]] = ..., set_allocation_mode: _Optional[_Union[SetAllocationMode, _Mapping]] = ..., start_trace: _Optional[_Union[StartTrace, _Mapping]] = ..., end_trace: _Optional[_Union[EndTrace, _Mapping]] = ..., set_durable: _Optional[_Union[SetDurable, _Mapping]] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., collective: _Optional[_Union[Collective, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., write_pointers: _Optional[_Union[WritePointers, _Mapping]] = ..., publish_event: _Optional[_Union[PublishEvent, _Mapping]] = ..., attach_event: _Optional[_Union[AttachEvent, _Mapping]] = ..., begin_conditional: _Optional[_Union[BeginConditional, _Mapping]] = ..., end_conditional: _Optional[_Union[EndConditional, _Mapping]] = ..., begin_branch: _Optional[_Union[BeginBranch, _Mapping]] = ...) -> None: ...

class Allocate(_message.Message):
    __slots__ = ("buffer", "size", "parts")
    class Part(_message.Message):
        __slots__ = ("buffer", "size")
        BUFFER_FIELD_NUMBER: _ClassVar[int]
        SIZE_FIELD_NUMBER: _ClassVar[int]
        buffer: int
        size: int
        def __init__(self, buffer: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    size: int
    parts: _containers.RepeatedCompositeFieldContainer[Allocate.Part]
    def __init__(self, buffer: _Optional[int] = ..., size: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[Allocate.Part, _Mapping]]] = ...) -> None: ...

class SetAllocationMode(_message.Message):
    __slots__ = ("mode",)
    MODE_FIELD_NUMBER: _ClassVar[int]
    mode: AllocationMode
    def __init__(self, mode: _Optional[_Union[AllocationMode, str]] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("width", "rows", "pitch")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PITCH_FIELD_NUMBER: _ClassVar[int]
    width: int
    rows: int
    pitch: int
    def __init__(self, width: _Optional[int] = ..., rows: _Optional[int] = ..., pitch: _Optional[int] = ...) -> None: ...

class Free(_message.Message):
    __slots__ = ("buffers",)
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    buffers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, buffers: _Optional[_Iterable[int]] = ...) -> None: ...

class Write(_message.Message):
    __slots__ = ("buffer", "offset", "data", "transfer", "size", "rows", "shared", "split")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    offset: int
    data: bytes
    transfer: int
    size: int
    rows: Rows
    shared: Shared
    split: SplitCopy
    def __init__(self, buffer: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., transfer: _Optional[int] = ..., size: _Optional[int] = ..., rows: _Optional[_Union[Rows, _Mapping]] = ..., shared: _Optional[_Union[Shared, _Mapping]] = ..., split: _Optional[_Union[SplitCopy, _Mapping]] = ...) -> None: ...

class Read(_message.Message):
    __slots__ = ("buffer", "offset", "size", "transfer", "rows", "shared", "split")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    offset: int
    size: int
    transfer: int
    rows: Rows
    shared: Shared
    split: SplitCopy
    def __init__(self, buffer: _Optional[int] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ..., transfer: _Optional[int] = ..., rows: _Optional[_Union[Rows, _Mapping]] = ..., shared: _Optional[_Union[Shared, _Mapping]] = ..., split: _Optional[_Union[SplitCopy, _Mapping]] = ...) -> None: ...

class SplitCopy(_message.Message):
    __slots__ = ("number", "size")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    number: int
    size: int
    def __init__(self, number: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class Shared(_message.Message):
    __slots__ = ("segment", "offset")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    segment: int
    offset: int
    def __init__(self, segment: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Copy(_message.Message):
    __slots__ = ("destination", "destination_offset", "source", "source_offset", "size", "rows", "destination_pitch", "source_pitch")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_PITCH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_PITCH_FIELD_NUMBER: _ClassVar[int]
    destination: int
    destination_offset: int
    source: int
    source_offset: int
    size: int
    rows: int
    destination_pitch: int
    source_pitch: int
    def __init__(self, destination: _Optional[int] = ..., destination_offset: _Optional[int] = ..., source: _Optional[int] = ..., source_offset: _Optional[int] = ..., size: _Optional[int] = ..., rows: _Optional[int] = ..., destination_pitch: _Optional[int] = ..., source_pitch: _Optional[int] = ...) -> None: ...

class Fill(_message.Message):
    __slots__ = ("buffer", "offset", "size", "pattern")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    offset: int
    size: int
    pattern: bytes
    def __init__(self, buffer: _Optional[int] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ..., pattern: _Optional[bytes] = ...) -> None: ...

class WritePointers(_message.Message):
    __slots__ = ("buffer", "data", "targets", "at", "target", "offset")
    class Target(_message.Message):
        __slots__ = ("buffer", "read_only")
        BUFFER_FIELD_NUMBER: _ClassVar[int]
        READ_ONLY_FIELD_NUMBER: _ClassVar[int]
        buffer: int
        read_only: bool
        def __init__(self, buffer: _Optional[int] = ..., read_only: bool = ...) -> None: ...
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    data: bytes
    targets: _containers.RepeatedCompositeFieldContainer[WritePointers.Target]
    at: _containers.RepeatedScalarFieldContainer[int]
    target: _containers.RepeatedScalarFieldContainer[int]
    offset: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, buffer: _Optional[int] = ..., data: _Optional[bytes] = ..., targets: _Optional[_Iterable[_Union[WritePointers.Target, _Mapping]]] = ..., at: _Optional[_Iterable[int]] = ..., target: _Optional[_Iterable[int]] = ..., offset: _Optional[_Iterable[int]] = ...) -> None: ...

class MemoryUsage(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MemoryCleanup(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CreateStream(_message.Message):
    __slots__ = ("stream", "priority")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    stream: int
    priority: int
    def __init__(self, stream: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class DestroyStream(_message.Message):
    __slots__ = ("stream",)
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: int
    def __init__(self, stream: _Optional[int] = ...) -> None: ...

class RecordEvent(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: int
    def __init__(self, event: _Optional[int] = ...) -> None: ...

class WaitEvent(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: int
    def __init__(self, event: _Optional[int] = ...) -> None: ...

class QueryEvent(_message.Message):
    __slots__ = ("event", "wait")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    event: int
    wait: bool
    def __init__(self, event: _Optional[int] = ..., wait: bool = ...) -> None: ...

class ElapsedTime(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class DestroyEvent(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: int
    def __init__(self, event: _Optional[int] = ...) -> None: ...

class PublishEvent(_message.Message):
    __slots__ = ("event", "name", "replace")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    event: int
    name: str
    replace: bool
    def __init__(self, event: _Optional[int] = ..., name: _Optional[str] = ..., replace: bool = ...) -> None: ...

class AttachEvent(_message.Message):
    __slots__ = ("event", "name")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    event: int
    name: str
    def __init__(self, event: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class LoadModule(_message.Message):
    __slots__ = ("module", "kind", "code", "options", "name_expressions", "headers", "inputs")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class Input(_message.Message):
        __slots__ = ("kind", "code")
        KIND_FIELD_NUMBER: _ClassVar[int]
        CODE_FIELD_NUMBER: _ClassVar[int]
        kind: CodeKind
        code: bytes
        def __init__(self, kind: _Optional[_Union[CodeKind, str]] = ..., code: _Optional[bytes] = ...) -> None: ...
    MODULE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_EXPRESSIONS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    module: int
    kind: CodeKind
    code: bytes
    options: _containers.RepeatedScalarFieldContainer[str]
    name_expressions: _containers.RepeatedScalarFieldContainer[str]
    headers: _containers.ScalarMap[str, str]
    inputs: _containers.RepeatedCompositeFieldContainer[LoadModule.Input]
    def __init__(self, module: _Optional[int] = ..., kind: _Optional[_Union[CodeKind, str]] = ..., code: _Optional[bytes] = ..., options: _Optional[_Iterable[str]] = ..., name_expressions: _Optional[_Iterable[str]] = ..., headers: _Optional[_Mapping[str, str]] = ..., inputs: _Optional[_Iterable[_Union[LoadModule.Input, _Mapping]]] = ...) -> None: ...

class UnloadModule(_message.Message):
    __slots__ = ("module",)
    MODULE_FIELD_NUMBER: _ClassVar[int]
    module: int
    def __init__(self, module: _Optional[int] = ...) -> None: ...

class GetFunction(_message.Message):
    __slots__ = ("function", "module", "name")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    MODULE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    function: int
    module: int
    name: str
    def __init__(self, function: _Optional[int] = ..., module: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class GetGlobal(_message.Message):
    __slots__ = ("buffer", "module", "name")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    MODULE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    module: int
    name: str
    def __init__(self, buffer: _Optional[int] = ..., module: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class DescribeModule(_message.Message):
    __slots__ = ("module",)
    MODULE_FIELD_NUMBER: _ClassVar[int]
    module: int
    def __init__(self, module: _Optional[int] = ...) -> None: ...

class DescribeFunction(_message.Message):
    __slots__ = ("function", "preferred_shared_memory_carveout")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_SHARED_MEMORY_CARVEOUT_FIELD_NUMBER: _ClassVar[int]
    function: int
    preferred_shared_memory_carveout: int
    def __init__(self, function: _Optional[int] = ..., preferred_shared_memory_carveout: _Optional[int] = ...) -> None: ...

class Dim3(_message.Message):
    __slots__ = ("x", "y", "z")
    X_FIELD_NUMBER: _ClassVar[int]
    Y_FIELD_NUMBER: _ClassVar[int]
    Z_FIELD_NUMBER: _ClassVar[int]
    x: int
    y: int
    z: int
    def __init__(self, x: _Optional[int] = ..., y: _Optional[int] = ..., z: _Optional[int] = ...) -> None: ...

class Argument(_message.Message):
    __slots__ = ("pointer", "raw", "float32", "float64", "int32", "int64", "uint32", "uint64", "boolean", "tensor_map", "structure")
    class Pointer(_message.Message):
        __slots__ = ("buffer", "offset", "read_only")
        BUFFER_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        READ_ONLY_FIELD_NUMBER: _ClassVar[int]
        buffer: int
        offset: int
        read_only: bool
        def __init__(self, buffer: _Optional[int] = ..., offset: _Optional[int] = ..., read_only: bool = ...) -> None: ...
    class Structure(_message.Message):
        __slots__ = ("data", "pointers")
        class Field(_message.Message):
            __slots__ = ("at", "pointer")
            AT_FIELD_NUMBER: _ClassVar[int]
            POINTER_FIELD_NUMBER: _ClassVar[int]
            at: int
            pointer: Argument.Pointer
            def __init__(self, at: _Optional[int] = ..., pointer: _Optional[_Union[Argument.Pointer, _Mapping]] = ...) -> None: ...
        DATA_FIELD_NUMBER: _ClassVar[int]
        POINTERS_FIELD_NUMBER: _ClassVar[int]
        data: bytes
        pointers: _containers.RepeatedCompositeFieldContainer[Argument.Structure.Field]
        def __init__(self, data: _Optional[bytes] = ..., pointers: _Optional[_Iterable[_Union[Argument.Structure.Field, _Mapping]]] = ...) -> None: ...
    POINTER_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    FLOAT32_FIELD_NUMBER: _ClassVar[int]
    FLOAT64_FIELD_NUMBER: _ClassVar[int]
    INT32_FIELD_NUMBER: _ClassVar[int]
    INT64_FIELD_NUMBER: _ClassVar[int]
    UINT32_FIELD_NUMBER: _ClassVar[int]
    UINT64_FIELD_NUMBER: _ClassVar[int]
    BOOLEAN_FIELD_NUMBER: _ClassVar[int]
    TENSOR_MAP_FIELD_NUMBER: _ClassVar[int]
    STRUCTURE_FIELD_NUMBER: _ClassVar[int]
    pointer: Argument.Pointer
    raw: bytes
    float32: float
    float64: float
    int32: int
    int64: int
    uint32: int
    uint64: int
    boolean: bool
    tensor_map: int
    structure: Argument.Structure
    def __init__(self, pointer: _Optional[_Union[Argument.Pointer, _Mapping]] = ..., raw: _Optional[bytes] = ..., float32: _Optional[float] = ..., float64: _Optional[float] = ..., int32: _Optional[int] = ..., int64: _Optional[int] = ..., uint32: _Optional[int] = ..., uint64: _Optional[int] = ..., boolean: bool = ..., tensor_map: _Optional[int] = ..., structure: _Optional[_Union[Argument.Structure, _Mapping]] = ...) -> None: ...

class LaunchAttributes(_message.Message):
    __slots__ = ("programmatic_stream_serialization", "priority", "access_policy_window", "mem_sync_domain")
    PROGRAMMATIC_STREAM_SERIALIZATION_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ACCESS_POLICY_WINDOW_FIELD_NUMBER: _ClassVar[int]
    MEM_SYNC_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    programmatic_stream_serialization: bool
    priority: int
    access_policy_window: AccessPolicyWindow
    mem_sync_domain: MemSyncDomain
    def __init__(self, programmatic_stream_serialization: bool = ..., priority: _Optional[int] = ..., access_policy_window: _Optional[_Union[AccessPolicyWindow, _Mapping]] = ..., mem_sync_domain: _Optional[_Union[MemSyncDomain, str]] = ...) -> None: ...

class AccessPolicyWindow(_message.Message):
    __slots__ = ("buffer", "offset", "size", "hit_ratio", "hit", "miss")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    HIT_RATIO_FIELD_NUMBER: _ClassVar[int]
    HIT_FIELD_NUMBER: _ClassVar[int]
    MISS_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    offset: int
    size: int
    hit_ratio: float
    hit: AccessProperty
    miss: AccessProperty
    def __init__(self, buffer: _Optional[int] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ..., hit_ratio: _Optional[float] = ..., hit: _Optional[_Union[AccessProperty, str]] = ..., miss: _Optional[_Union[AccessProperty, str]] = ...) -> None: ...

class Launch(_message.Message):
    __slots__ = ("function", "grid", "block", "shared_mem", "arguments", "timeout_ns", "mode", "cooperative", "cluster", "iterations", "dynamic_grid", "fit", "attributes")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEM_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    COOPERATIVE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    DYNAMIC_GRID_FIELD_NUMBER: _ClassVar[int]
    FIT_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    function: int
    grid: Dim3
    block: Dim3
    shared_mem: int
    arguments: _containers.RepeatedCompositeFieldContainer[Argument]
    timeout_ns: int
    mode: LaunchMode
    cooperative: bool
    cluster: Dim3
    iterations: int
    dynamic_grid: Argument.Pointer
    fit: bool
    attributes: LaunchAttributes
    def __init__(self, function: _Optional[int] = ..., grid: _Optional[_Union[Dim3, _Mapping]] = ..., block: _Optional[_Union[Dim3, _Mapping]] = ..., shared_mem: _Optional[int] = ..., arguments: _Optional[_Iterable[_Union[Argument, _Mapping]]] = ..., timeout_ns: _Optional[int] = ..., mode: _Optional[_Union[LaunchMode, str]] = ..., cooperative: bool = ..., cluster: _Optional[_Union[Dim3, _Mapping]] = ..., iterations: _Optional[int] = ..., dynamic_grid: _Optional[_Union[Argument.Pointer, _Mapping]] = ..., fit: bool = ..., attributes: _Optional[_Union[LaunchAttributes, _Mapping]] = ...) -> None: ...

class Occupancy(_message.Message):
    __slots__ = ("function", "block", "shared_mem", "cluster")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEM_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    function: int
    block: Dim3
    shared_mem: int
    cluster: Dim3
    def __init__(self, function: _Optional[int] = ..., block: _Optional[_Union[Dim3, _Mapping]] = ..., shared_mem: _Optional[int] = ..., cluster: _Optional[_Union[Dim3, _Mapping]] = ...) -> None: ...

class CreateTensorMap(_message.Message):
    __slots__ = ("tensor_map", "buffer", "offset", "dtype", "shape", "strides", "element_strides", "interleave", "swizzle", "l2_promotion", "oob_fill", "tile", "im2col", "im2col_wide")
    class Tile(_message.Message):
        __slots__ = ("box",)
        BOX_FIELD_NUMBER: _ClassVar[int]
        box: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, box: _Optional[_Iterable[int]] = ...) -> None: ...
    class Im2col(_message.Message):
        __slots__ = ("lower_corner", "upper_corner", "channels_per_pixel", "pixels_per_column")
        LOWER_CORNER_FIELD_NUMBER: _ClassVar[int]
        UPPER_CORNER_FIELD_NUMBER: _ClassVar[int]
        CHANNELS_PER_PIXEL_FIELD_NUMBER: _ClassVar[int]
        PIXELS_PER_COLUMN_FIELD_NUMBER: _ClassVar[int]
        lower_corner: _containers.RepeatedScalarFieldContainer[int]
        upper_corner: _containers.RepeatedScalarFieldContainer[int]
        channels_per_pixel: int
        pixels_per_column: int
        def __init__(self, lower_corner: _Optional[_Iterable[int]] = ..., upper_corner: _Optional[_Iterable[int]] = ..., channels_per_pixel: _Optional[int] = ..., pixels_per_column: _Optional[int] = ...) -> None: ...
    class Im2colWide(_message.Message):
        __slots__ = ("lower_corner_width", "upper_corner_width", "channels_per_pixel", "pixels_per_column", "mode")
        LOWER_CORNER_WIDTH_FIELD_NUMBER: _ClassVar[int]
        UPPER_CORNER_WIDTH_FIELD_NUMBER: _ClassVar[int]
        CHANNELS_PER_PIXEL_FIELD_NUMBER: _ClassVar[int]
        PIXELS_PER_COLUMN_FIELD_NUMBER: _ClassVar[int]
        MODE_FIELD_NUMBER: _ClassVar[int]
        lower_corner_width: int
        upper_corner_width: int
        channels_per_pixel: int
        pixels_per_column: int
        mode: str
        def __init__(self, lower_corner_width: _Optional[int] = ..., upper_corner_width: _Optional[int] = ..., channels_per_pixel: _Optional[int] = ..., pixels_per_column: _Optional[int] = ..., mode: _Optional[str] = ...) -> None: ...
    TENSOR_MAP_FIELD_NUMBER: _ClassVar[int]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    STRIDES_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_STRIDES_FIELD_NUMBER: _ClassVar[int]
    INTERLEAVE_FIELD_NUMBER: _ClassVar[int]
    SWIZZLE_FIELD_NUMBER: _ClassVar[int]
    L2_PROMOTION_FIELD_NUMBER: _ClassVar[int]
    OOB_FILL_FIELD_NUMBER: _ClassVar[int]
    TILE_FIELD_NUMBER: _ClassVar[int]
    IM2COL_FIELD_NUMBER: _ClassVar[int]
    IM2COL_WIDE_FIELD_NUMBER: _ClassVar[int]
    tensor_map: int
    buffer: int
    offset: int
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    strides: _containers.RepeatedScalarFieldContainer[int]
    element_strides: _containers.RepeatedScalarFieldContainer[int]
    interleave: str
    swizzle: str
    l2_promotion: str
    oob_fill: str
    tile: CreateTensorMap.Tile
    im2col: CreateTensorMap.Im2col
    im2col_wide: CreateTensorMap.Im2colWide
    def __init__(self, tensor_map: _Optional[int] = ..., buffer: _Optional[int] = ..., offset: _Optional[int] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., strides: _Optional[_Iterable[int]] = ..., element_strides: _Optional[_Iterable[int]] = ..., interleave: _Optional[str] = ..., swizzle: _Optional[str] = ..., l2_promotion: _Optional[str] = ..., oob_fill: _Optional[str] = ..., tile: _Optional[_Union[CreateTensorMap.Tile, _Mapping]] = ..., im2col: _Optional[_Union[CreateTensorMap.Im2col, _Mapping]] = ..., im2col_wide: _Optional[_Union[CreateTensorMap.Im2colWide, _Mapping]] = ...) -> None: ...

class DestroyTensorMap(_message.Message):
    __slots__ = ("tensor_map",)
    TENSOR_MAP_FIELD_NUMBER: _ClassVar[int]
    tensor_map: int
    def __init__(self, tensor_map: _Optional[int] = ...) -> None: ...

class Dispatch(_message.Message):
    __slots__ = ("function", "grid", "block", "shared_mem", "bindings", "iterations", "timeout_ns", "timed", "attributes", "mode", "cooperative", "fit", "cluster")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEM_FIELD_NUMBER: _ClassVar[int]
    BINDINGS_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NS_FIELD_NUMBER: _ClassVar[int]
    TIMED_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    COOPERATIVE_FIELD_NUMBER: _ClassVar[int]
    FIT_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    function: int
    grid: Dim3
    block: Dim3
    shared_mem: int
    bindings: _containers.RepeatedCompositeFieldContainer[Binding]
    iterations: int
    timeout_ns: int
    timed: bool
    attributes: LaunchAttributes
    mode: LaunchMode
    cooperative: bool
    fit: bool
    cluster: Dim3
    def __init__(self, function: _Optional[int] = ..., grid: _Optional[_Union[Dim3, _Mapping]] = ..., block: _Optional[_Union[Dim3, _Mapping]] = ..., shared_mem: _Optional[int] = ..., bindings: _Optional[_Iterable[_Union[Binding, _Mapping]]] = ..., iterations: _Optional[int] = ..., timeout_ns: _Optional[int] = ..., timed: bool = ..., attributes: _Optional[_Union[LaunchAttributes, _Mapping]] = ..., mode: _Optional[_Union[LaunchMode, str]] = ..., cooperative: bool = ..., fit: bool = ..., cluster: _Optional[_Union[Dim3, _Mapping]] = ...) -> None: ...

class Binding(_message.Message):
    __slots__ = ("role", "value", "size", "data", "upload", "range_offset", "range_size", "download")
    class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ROLE_UNSPECIFIED: _ClassVar[Binding.Role]
        ROLE_VALUE: _ClassVar[Binding.Role]
        ROLE_INPUT: _ClassVar[Binding.Role]
        ROLE_OUTPUT: _ClassVar[Binding.Role]
        ROLE_INPUT_OUTPUT: _ClassVar[Binding.Role]
    ROLE_UNSPECIFIED: Binding.Role
    ROLE_VALUE: Binding.Role
    ROLE_INPUT: Binding.Role
    ROLE_OUTPUT: Binding.Role
    ROLE_INPUT_OUTPUT: Binding.Role
    ROLE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    RANGE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RANGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    DOWNLOAD_FIELD_NUMBER: _ClassVar[int]
    role: Binding.Role
    value: Argument
    size: int
    data: bytes
    upload: int
    range_offset: int
    range_size: int
    download: int
    def __init__(self, role: _Optional[_Union[Binding.Role, str]] = ..., value: _Optional[_Union[Argument, _Mapping]] = ..., size: _Optional[int] = ..., data: _Optional[bytes] = ..., upload: _Optional[int] = ..., range_offset: _Optional[int] = ..., range_size: _Optional[int] = ..., download: _Optional[int] = ...) -> None: ...

class BeginCapture(_message.Message):
    __slots__ = ("graph",)
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    graph: int
    def __init__(self, graph: _Optional[int] = ...) -> None: ...

class EndCapture(_message.Message):
    __slots__ = ("graph", "discard")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    DISCARD_FIELD_NUMBER: _ClassVar[int]
    graph: int
    discard: bool
    def __init__(self, graph: _Optional[int] = ..., discard: bool = ...) -> None: ...

class LaunchGraph(_message.Message):
    __slots__ = ("graph", "count", "timeout_ns")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NS_FIELD_NUMBER: _ClassVar[int]
    graph: int
    count: int
    timeout_ns: int
    def __init__(self, graph: _Optional[int] = ..., count: _Optional[int] = ..., timeout_ns: _Optional[int] = ...) -> None: ...

class UpdateGraph(_message.Message):
    __slots__ = ("graph", "node", "launch", "copy", "fill")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    FILL_FIELD_NUMBER: _ClassVar[int]
    graph: int
    node: int
    launch: bytes
    copy: Copy
    fill: Fill
    def __init__(self, graph: _Optional[int] = ..., node: _Optional[int] = ..., launch: _Optional[bytes] = ..., copy: _Optional[_Union[Copy, _Mapping]] = ..., fill: _Optional[_Union[Fill, _Mapping]] = ...) -> None: ...

class DestroyGraph(_message.Message):
    __slots__ = ("graph",)
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    graph: int
    def __init__(self, graph: _Optional[int] = ...) -> None: ...

class BeginConditional(_message.Message):
    __slots__ = ("buffer", "offset", "loop", "switch")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOOP_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    offset: int
    loop: bool
    switch: bool
    def __init__(self, buffer: _Optional[int] = ..., offset: _Optional[int] = ..., loop: bool = ..., switch: bool = ...) -> None: ...

class EndConditional(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BeginBranch(_message.Message):
    __slots__ = ("otherwise", "value")
    OTHERWISE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    otherwise: bool
    value: int
    def __init__(self, otherwise: bool = ..., value: _Optional[int] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("prepared", "launches")
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    LAUNCHES_FIELD_NUMBER: _ClassVar[int]
    prepared: int
    launches: bytes
    def __init__(self, prepared: _Optional[int] = ..., launches: _Optional[bytes] = ...) -> None: ...

class LaunchPrepared(_message.Message):
    __slots__ = ("prepared", "count")
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    prepared: int
    count: int
    def __init__(self, prepared: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class DestroyPrepared(_message.Message):
    __slots__ = ("prepared",)
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    prepared: int
    def __init__(self, prepared: _Optional[int] = ...) -> None: ...

class Sync(_message.Message):
    __slots__ = ("all_streams",)
    ALL_STREAMS_FIELD_NUMBER: _ClassVar[int]
    all_streams: bool
    def __init__(self, all_streams: bool = ...) -> None: ...

class Flush(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartProfile(_message.Message):
    __slots__ = ("profile",)
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    profile: int
    def __init__(self, profile: _Optional[int] = ...) -> None: ...

class EndProfile(_message.Message):
    __slots__ = ("profile",)
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    profile: int
    def __init__(self, profile: _Optional[int] = ...) -> None: ...

class StartTrace(_message.Message):
    __slots__ = ("max_events",)
    MAX_EVENTS_FIELD_NUMBER: _ClassVar[int]
    max_events: int
    def __init__(self, max_events: _Optional[int] = ...) -> None: ...

class EndTrace(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AllReduce(_message.Message):
    __slots__ = ("devices", "sequence", "source", "source_offset", "destination", "destination_offset", "count", "dtype", "op", "timeout_ns")
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NS_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedScalarFieldContainer[int]
    sequence: int
    source: int
    source_offset: int
    destination: int
    destination_offset: int
    count: int
    dtype: str
    op: ReduceOp
    timeout_ns: int
    def __init__(self, devices: _Optional[_Iterable[int]] = ..., sequence: _Optional[int] = ..., source: _Optional[int] = ..., source_offset: _Optional[int] = ..., destination: _Optional[int] = ..., destination_offset: _Optional[int] = ..., count: _Optional[int] = ..., dtype: _Optional[str] = ..., op: _Optional[_Union[ReduceOp, str]] = ..., timeout_ns: _Optional[int] = ...) -> None: ...

class Collective(_message.Message):
    __slots__ = ("devices", "group", "sequence", "operations", "timeout_ns")
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NS_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedScalarFieldContainer[int]
    group: bytes
    sequence: int
    operations: _containers.RepeatedCompositeFieldContainer[CollectiveOperation]
    timeout_ns: int
    def __init__(self, devices: _Optional[_Iterable[int]] = ..., group: _Optional[bytes] = ..., sequence: _Optional[int] = ..., operations: _Optional[_Iterable[_Union[CollectiveOperation, _Mapping]]] = ..., timeout_ns: _Optional[int] = ...) -> None: ...

class CollectiveOperation(_message.Message):
    __slots__ = ("kind", "source", "source_offset", "destination", "destination_offset", "count", "dtype", "op", "root", "peer", "factor")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    kind: CollectiveKind
    source: int
    source_offset: int
    destination: int
    destination_offset: int
    count: int
    dtype: str
    op: ReduceOp
    root: int
    peer: int
    factor: bytes
    def __init__(self, kind: _Optional[_Union[CollectiveKind, str]] = ..., source: _Optional[int] = ..., source_offset: _Optional[int] = ..., destination: _Optional[int] = ..., destination_offset: _Optional[int] = ..., count: _Optional[int] = ..., dtype: _Optional[str] = ..., op: _Optional[_Union[ReduceOp, str]] = ..., root: _Optional[int] = ..., peer: _Optional[int] = ..., factor: _Optional[bytes] = ...) -> None: ...

class SyncCollective(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("all_streams", "of_request")
    ALL_STREAMS_FIELD_NUMBER: _ClassVar[int]
    OF_REQUEST_FIELD_NUMBER: _ClassVar[int]
    all_streams: bool
    of_request: int
    def __init__(self, all_streams: bool = ..., of_request: _Optional[int] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("request", "error", "done", "read", "event", "module", "function", "memory_usage", "profile", "dispatch", "graph", "occupancy", "trace", "cancel")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    MODULE_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USAGE_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    OCCUPANCY_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    request: int
    error: _status_pb2.Status
    done: Done
    read: ReadResult
    event: EventResult
    module: ModuleResult
    function: FunctionResult
    memory_usage: MemoryUsageResult
    profile: ProfileResult
    dispatch: DispatchResult
    graph: GraphResult
    occupancy: OccupancyResult
    trace: TraceResult
    cancel: CancelResult
    def __init__(self, request: _Optional[int] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., read: _Optional[_Union[ReadResult, _Mapping]] = ..., event: _Optional[_Union[EventResult, _Mapping]] = ..., module: _Optional[_Union[ModuleResult, _Mapping]] = ..., function: _Optional[_Union[FunctionResult, _Mapping]] = ..., memory_usage: _Optional[_Union[MemoryUsageResult, _Mapping]] = ..., profile: _Optional[_Union[ProfileResult, _Mapping]] = ..., dispatch: _Optional[_Union[DispatchResult, _Mapping]] = ..., graph: _Optional[_Union[GraphResult, _Mapping]] = ..., occupancy: _Optional[_Union[OccupancyResult, _Mapping]] = ..., trace: _Optional[_Union[TraceResult, _Mapping]] = ..., cancel: _Optional[_Union[CancelResult, _Mapping]] = ..., **kwargs) -> None: ...

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadResult(_message.Message):
    __slots__ = ("data", "size")
    DATA_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    size: int
    def __init__(self, data: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class CancelResult(_message.Message):
    __slots__ = ("dropped",)
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    dropped: int
    def __init__(self, dropped: _Optional[int] = ...) -> None: ...

class EventResult(_message.Message):
    __slots__ = ("done", "elapsed_ns")
    DONE_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_NS_FIELD_NUMBER: _ClassVar[int]
    done: bool
    elapsed_ns: int
    def __init__(self, done: bool = ..., elapsed_ns: _Optional[int] = ...) -> None: ...

class ModuleResult(_message.Message):
    __slots__ = ("functions", "globals", "log", "cached", "compile_ns")
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    GLOBALS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    COMPILE_NS_FIELD_NUMBER: _ClassVar[int]
    functions: _containers.RepeatedScalarFieldContainer[str]
    globals: _containers.RepeatedScalarFieldContainer[str]
    log: str
    cached: bool
    compile_ns: int
    def __init__(self, functions: _Optional[_Iterable[str]] = ..., globals: _Optional[_Iterable[str]] = ..., log: _Optional[str] = ..., cached: bool = ..., compile_ns: _Optional[int] = ...) -> None: ...

class FunctionResult(_message.Message):
    __slots__ = ("name", "parameters", "registers", "static_shared_bytes", "local_bytes", "constant_bytes", "max_threads_per_block", "max_dynamic_shared_bytes", "ptx_version", "binary_version", "cache_mode_ca", "preferred_shared_memory_carveout")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    REGISTERS_FIELD_NUMBER: _ClassVar[int]
    STATIC_SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOCAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_THREADS_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    MAX_DYNAMIC_SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PTX_VERSION_FIELD_NUMBER: _ClassVar[int]
    BINARY_VERSION_FIELD_NUMBER: _ClassVar[int]
    CACHE_MODE_CA_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_SHARED_MEMORY_CARVEOUT_FIELD_NUMBER: _ClassVar[int]
    name: str
    parameters: _containers.RepeatedCompositeFieldContainer[Parameter]
    registers: int
    static_shared_bytes: int
    local_bytes: int
    constant_bytes: int
    max_threads_per_block: int
    max_dynamic_shared_bytes: int
    ptx_version: int
    binary_version: int
    cache_mode_ca: bool
    preferred_shared_memory_carveout: int
    def __init__(self, name: _Optional[str] = ..., parameters: _Optional[_Iterable[_Union[Parameter, _Mapping]]] = ..., registers: _Optional[int] = ..., static_shared_bytes: _Optional[int] = ..., local_bytes: _Optional[int] = ..., constant_bytes: _Optional[int] = ..., max_threads_per_block: _Optional[int] = ..., max_dynamic_shared_bytes: _Optional[int] = ..., ptx_version: _Optional[int] = ..., binary_version: _Optional[int] = ..., cache_mode_ca: bool = ..., preferred_shared_memory_carveout: _Optional[int] = ...) -> None: ...

class Parameter(_message.Message):
    __slots__ = ("offset", "size")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    offset: int
    size: int
    def __init__(self, offset: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class GlobalResult(_message.Message):
    __slots__ = ("size",)
    SIZE_FIELD_NUMBER: _ClassVar[int]
    size: int
    def __init__(self, size: _Optional[int] = ...) -> None: ...

class MemoryUsageResult(_message.Message):
    __slots__ = ("allocations", "bytes_in_use", "bytes_padding", "bytes_reserved", "device_free", "device_total", "bytes_pinned", "bytes_pinned_in_use", "bytes_persistent", "bytes_peak", "bytes_durable")
    ALLOCATIONS_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_USE_FIELD_NUMBER: _ClassVar[int]
    BYTES_PADDING_FIELD_NUMBER: _ClassVar[int]
    BYTES_RESERVED_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FREE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BYTES_PINNED_FIELD_NUMBER: _ClassVar[int]
    BYTES_PINNED_IN_USE_FIELD_NUMBER: _ClassVar[int]
    BYTES_PERSISTENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_PEAK_FIELD_NUMBER: _ClassVar[int]
    BYTES_DURABLE_FIELD_NUMBER: _ClassVar[int]
    allocations: int
    bytes_in_use: int
    bytes_padding: int
    bytes_reserved: int
    device_free: int
    device_total: int
    bytes_pinned: int
    bytes_pinned_in_use: int
    bytes_persistent: int
    bytes_peak: int
    bytes_durable: int
    def __init__(self, allocations: _Optional[int] = ..., bytes_in_use: _Optional[int] = ..., bytes_padding: _Optional[int] = ..., bytes_reserved: _Optional[int] = ..., device_free: _Optional[int] = ..., device_total: _Optional[int] = ..., bytes_pinned: _Optional[int] = ..., bytes_pinned_in_use: _Optional[int] = ..., bytes_persistent: _Optional[int] = ..., bytes_peak: _Optional[int] = ..., bytes_durable: _Optional[int] = ...) -> None: ...

class ProfileResult(_message.Message):
    __slots__ = ("device_ns", "wall_ns")
    DEVICE_NS_FIELD_NUMBER: _ClassVar[int]
    WALL_NS_FIELD_NUMBER: _ClassVar[int]
    device_ns: int
    wall_ns: int
    def __init__(self, device_ns: _Optional[int] = ..., wall_ns: _Optional[int] = ...) -> None: ...

class DispatchResult(_message.Message):
    __slots__ = ("outputs", "sizes", "upload_ns", "kernel_ns", "download_ns", "wall_ns", "enqueue_ns", "wait_ns")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_NS_FIELD_NUMBER: _ClassVar[int]
    KERNEL_NS_FIELD_NUMBER: _ClassVar[int]
    DOWNLOAD_NS_FIELD_NUMBER: _ClassVar[int]
    WALL_NS_FIELD_NUMBER: _ClassVar[int]
    ENQUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    outputs: _containers.RepeatedScalarFieldContainer[bytes]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    upload_ns: int
    kernel_ns: int
    download_ns: int
    wall_ns: int
    enqueue_ns: int
    wait_ns: int
    def __init__(self, outputs: _Optional[_Iterable[bytes]] = ..., sizes: _Optional[_Iterable[int]] = ..., upload_ns: _Optional[int] = ..., kernel_ns: _Optional[int] = ..., download_ns: _Optional[int] = ..., wall_ns: _Optional[int] = ..., enqueue_ns: _Optional[int] = ..., wait_ns: _Optional[int] = ...) -> None: ...

class GraphResult(_message.Message):
    __slots__ = ("nodes", "forked", "children")
    NODES_FIELD_NUMBER: _ClassVar[int]
    FORKED_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[GraphNode]
    forked: bool
    children: _containers.RepeatedCompositeFieldContainer[ChildGraph]
    def __init__(self, nodes: _Optional[_Iterable[_Union[GraphNode, _Mapping]]] = ..., forked: bool = ..., children: _Optional[_Iterable[_Union[ChildGraph, _Mapping]]] = ...) -> None: ...

class GraphNode(_message.Message):
    __slots__ = ("kind", "kernel", "after", "body", "bodies")
    KIND_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    kernel: str
    after: _containers.RepeatedScalarFieldContainer[int]
    body: int
    bodies: _containers.RepeatedCompositeFieldContainer[GraphBody]
    def __init__(self, kind: _Optional[str] = ..., kernel: _Optional[str] = ..., after: _Optional[_Iterable[int]] = ..., body: _Optional[int] = ..., bodies: _Optional[_Iterable[_Union[GraphBody, _Mapping]]] = ...) -> None: ...

class GraphBody(_message.Message):
    __slots__ = ("index", "nodes")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    index: int
    nodes: int
    def __init__(self, index: _Optional[int] = ..., nodes: _Optional[int] = ...) -> None: ...

class ChildGraph(_message.Message):
    __slots__ = ("graph", "first", "nodes")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    graph: int
    first: int
    nodes: int
    def __init__(self, graph: _Optional[int] = ..., first: _Optional[int] = ..., nodes: _Optional[int] = ...) -> None: ...

class OccupancyResult(_message.Message):
    __slots__ = ("blocks_per_multiprocessor", "multiprocessors", "max_cooperative_blocks", "max_clusters", "suggested_block")
    BLOCKS_PER_MULTIPROCESSOR_FIELD_NUMBER: _ClassVar[int]
    MULTIPROCESSORS_FIELD_NUMBER: _ClassVar[int]
    MAX_COOPERATIVE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    SUGGESTED_BLOCK_FIELD_NUMBER: _ClassVar[int]
    blocks_per_multiprocessor: int
    multiprocessors: int
    max_cooperative_blocks: int
    max_clusters: int
    suggested_block: int
    def __init__(self, blocks_per_multiprocessor: _Optional[int] = ..., multiprocessors: _Optional[int] = ..., max_cooperative_blocks: _Optional[int] = ..., max_clusters: _Optional[int] = ..., suggested_block: _Optional[int] = ...) -> None: ...

class TraceResult(_message.Message):
    __slots__ = ("events", "dropped", "epoch_ns", "kernels")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_NS_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[TraceEvent]
    dropped: int
    epoch_ns: int
    kernels: _containers.RepeatedCompositeFieldContainer[KernelActivity]
    def __init__(self, events: _Optional[_Iterable[_Union[TraceEvent, _Mapping]]] = ..., dropped: _Optional[int] = ..., epoch_ns: _Optional[int] = ..., kernels: _Optional[_Iterable[_Union[KernelActivity, _Mapping]]] = ...) -> None: ...

class KernelActivity(_message.Message):
    __slots__ = ("name", "stream", "seq", "index", "started_ns", "ended_ns", "grid", "block", "registers", "shared_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STARTED_NS_FIELD_NUMBER: _ClassVar[int]
    ENDED_NS_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    REGISTERS_FIELD_NUMBER: _ClassVar[int]
    SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    stream: int
    seq: int
    index: int
    started_ns: int
    ended_ns: int
    grid: Dim3
    block: Dim3
    registers: int
    shared_bytes: int
    def __init__(self, name: _Optional[str] = ..., stream: _Optional[int] = ..., seq: _Optional[int] = ..., index: _Optional[int] = ..., started_ns: _Optional[int] = ..., ended_ns: _Optional[int] = ..., grid: _Optional[_Union[Dim3, _Mapping]] = ..., block: _Optional[_Union[Dim3, _Mapping]] = ..., registers: _Optional[int] = ..., shared_bytes: _Optional[int] = ...) -> None: ...

class TraceEvent(_message.Message):
    __slots__ = ("name", "stream", "seq", "index", "queued_ns", "submitted_ns", "started_ns", "ended_ns", "bytes", "kernel", "grid", "block", "error")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    QUEUED_NS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_NS_FIELD_NUMBER: _ClassVar[int]
    STARTED_NS_FIELD_NUMBER: _ClassVar[int]
    ENDED_NS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    stream: int
    seq: int
    index: int
    queued_ns: int
    submitted_ns: int
    started_ns: int
    ended_ns: int
    bytes: int
    kernel: str
    grid: Dim3
    block: Dim3
    error: str
    def __init__(self, name: _Optional[str] = ..., stream: _Optional[int] = ..., seq: _Optional[int] = ..., index: _Optional[int] = ..., queued_ns: _Optional[int] = ..., submitted_ns: _Optional[int] = ..., started_ns: _Optional[int] = ..., ended_ns: _Optional[int] = ..., bytes: _Optional[int] = ..., kernel: _Optional[str] = ..., grid: _Optional[_Union[Dim3, _Mapping]] = ..., block: _Optional[_Union[Dim3, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class SetDurable(_message.Message):
    __slots__ = ("buffers", "durable")
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    buffers: _containers.RepeatedScalarFieldContainer[int]
    durable: bool
    def __init__(self, buffers: _Optional[_Iterable[int]] = ..., durable: bool = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("buffers",)
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    buffers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, buffers: _Optional[_Iterable[int]] = ...) -> None: ...
