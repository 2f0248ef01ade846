from hearth_proto.v1 import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CodeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CODE_KIND_UNSPECIFIED: _ClassVar[CodeKind]
    CODE_KIND_CUDA_CPP: _ClassVar[CodeKind]
    CODE_KIND_PTX: _ClassVar[CodeKind]
    CODE_KIND_CUBIN: _ClassVar[CodeKind]
    CODE_KIND_FATBIN: _ClassVar[CodeKind]

class ReduceOp(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REDUCE_OP_UNSPECIFIED: _ClassVar[ReduceOp]
    REDUCE_OP_SUM: _ClassVar[ReduceOp]
    REDUCE_OP_MEAN: _ClassVar[ReduceOp]
    REDUCE_OP_MIN: _ClassVar[ReduceOp]
    REDUCE_OP_MAX: _ClassVar[ReduceOp]
    REDUCE_OP_PROD: _ClassVar[ReduceOp]
CODE_KIND_UNSPECIFIED: CodeKind
CODE_KIND_CUDA_CPP: CodeKind
CODE_KIND_PTX: CodeKind
CODE_KIND_CUBIN: CodeKind
CODE_KIND_FATBIN: CodeKind
REDUCE_OP_UNSPECIFIED: ReduceOp
REDUCE_OP_SUM: ReduceOp
REDUCE_OP_MEAN: ReduceOp
REDUCE_OP_MIN: ReduceOp
REDUCE_OP_MAX: ReduceOp
REDUCE_OP_PROD: ReduceOp

class Batch(_message.Message):
    __slots__ = ("seq", "commands")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    def __init__(self, seq: _Optional[int] = ..., commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("request", "stream", "launches", "allocate", "free", "write", "read", "copy", "fill", "create_stream", "destroy_stream", "record_event", "wait_event", "query_event", "elapsed_time", "destroy_event", "load_module", "get_function", "get_global", "unload_module", "describe_module", "describe_function", "launch", "sync", "flush", "memory_usage", "memory_cleanup", "start_profile", "end_profile", "all_reduce", "sync_collective")
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
    def __init__(self, request: _Optional[int] = ..., stream: _Optional[int] = ..., launches: _Optional[bytes] = ..., allocate: _Optional[_Union[Allocate, _Mapping]] = ..., free: _Optional[_Union[Free, _Mapping]] = ..., write: _Optional[_Union[Write, _Mapping]] = ..., read: _Optional[_Union[Read, _Mapping]] = ..., copy: _Optional[_Union[Copy, _Mapping]] = ..., fill: _Optional[_Union[Fill, _Mapping]] = ..., create_stream: _Optional[_Union[CreateStream, _Mapping]] = ..., destroy_stream: _Optional[_Union[DestroyStream, _Mapping]] = ..., record_event: _Optional[_Union[RecordEvent, _Mapping]] = ..., wait_event: _Optional[_Union[WaitEvent, _Mapping]] = ..., query_event: _Optional[_Union[QueryEvent, _Mapping]] = ..., elapsed_time: _Optional[_Union[ElapsedTime, _Mapping]] = ..., destroy_event: _Optional[_Union[DestroyEvent, _Mapping]] = ..., load_module: _Optional[_Union[LoadModule, _Mapping]] = ..., get_function: _Optional[_Union[GetFunction, _Mapping]] = ..., get_global: _Optional[_Union[GetGlobal, _Mapping]] = ..., unload_module: _Optional[_Union[UnloadModule, _Mapping]] = ..., describe_module: _Optional[_Union[DescribeModule, _Mapping]] = ..., describe_function: _Optional[_Union[DescribeFunction, _Mapping]] = ..., launch: _Optional[_Union[Launch, _Mapping]] = ..., sync: _Optional[_Union[Sync, _Mapping]] = ..., flush: _Optional[_Union[Flush, _Mapping]] = ..., memory_usage: _Optional[_Union[MemoryUsage, _Mapping]] = ..., memory_cleanup: _Optional[_Union[MemoryCleanup, _Mapping]] = ..., start_profile: _Optional[_Union[StartProfile, _Mapping]] = ..., end_profile: _Optional[_Union[EndProfile, _Mapping]] = ..., all_reduce: _Optional[_Union[AllReduce, _Mapping]] = ..., sync_collective: _Optional[_Union[SyncCollective, _Mapping]] = ...) -> None: ...

class Allocate(_message.Message):
    __slots__ = ("buffer", "size")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    size: int
    def __init__(self, buffer: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class Free(_message.Message):
    __slots__ = ("buffers",)
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    buffers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, buffers: _Optional[_Iterable[int]] = ...) -> None: ...

class Write(_message.Message):
    __slots__ = ("buffer", "offset", "data", "transfer", "size")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    offset: int
    data: bytes
    transfer: int
    size: int
    def __init__(self, buffer: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., transfer: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class Read(_message.Message):
    __slots__ = ("buffer", "offset", "size", "transfer")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    offset: int
    size: int
    transfer: int
    def __init__(self, buffer: _Optional[int] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ..., transfer: _Optional[int] = ...) -> None: ...

class Copy(_message.Message):
    __slots__ = ("destination", "destination_offset", "source", "source_offset", "size")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    destination: int
    destination_offset: int
    source: int
    source_offset: int
    size: int
    def __init__(self, destination: _Optional[int] = ..., destination_offset: _Optional[int] = ..., source: _Optional[int] = ..., source_offset: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

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

class LoadModule(_message.Message):
    __slots__ = ("module", "kind", "code", "options", "name_expressions", "headers")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODULE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_EXPRESSIONS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    module: int
    kind: CodeKind
    code: bytes
    options: _containers.RepeatedScalarFieldContainer[str]
    name_expressions: _containers.RepeatedScalarFieldContainer[str]
    headers: _containers.ScalarMap[str, str]
    def __init__(self, module: _Optional[int] = ..., kind: _Optional[_Union[CodeKind, str]] = ..., code: _Optional[bytes] = ..., options: _Optional[_Iterable[str]] = ..., name_expressions: _Optional[_Iterable[str]] = ..., headers: _Optional[_Mapping[str, str]] = ...) -> None: ...

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
    __slots__ = ("function",)
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    function: int
    def __init__(self, function: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("pointer", "raw", "float32", "float64", "int32", "int64", "uint32", "uint64", "boolean")
    class Pointer(_message.Message):
        __slots__ = ("buffer", "offset")
        BUFFER_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        buffer: int
        offset: int
        def __init__(self, buffer: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...
    POINTER_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    FLOAT32_FIELD_NUMBER: _ClassVar[int]
    FLOAT64_FIELD_NUMBER: _ClassVar[int]
    INT32_FIELD_NUMBER: _ClassVar[int]
    INT64_FIELD_NUMBER: _ClassVar[int]
    UINT32_FIELD_NUMBER: _ClassVar[int]
    UINT64_FIELD_NUMBER: _ClassVar[int]
    BOOLEAN_FIELD_NUMBER: _ClassVar[int]
    pointer: Argument.Pointer
    raw: bytes
    float32: float
    float64: float
    int32: int
    int64: int
    uint32: int
    uint64: int
    boolean: bool
    def __init__(self, pointer: _Optional[_Union[Argument.Pointer, _Mapping]] = ..., raw: _Optional[bytes] = ..., float32: _Optional[float] = ..., float64: _Optional[float] = ..., int32: _Optional[int] = ..., int64: _Optional[int] = ..., uint32: _Optional[int] = ..., uint64: _Optional[int] = ..., boolean: bool = ...) -> None: ...

class Launch(_message.Message):
    __slots__ = ("function", "grid", "block", "shared_mem", "arguments", "timeout_ns")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEM_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NS_FIELD_NUMBER: _ClassVar[int]
    function: int
    grid: Dim3
    block: Dim3
    shared_mem: int
    arguments: _containers.RepeatedCompositeFieldContainer[Argument]
    timeout_ns: int
    def __init__(self, function: _Optional[int] = ..., grid: _Optional[_Union[Dim3, _Mapping]] = ..., block: _Optional[_Union[Dim3, _Mapping]] = ..., shared_mem: _Optional[int] = ..., arguments: _Optional[_Iterable[_Union[Argument, _Mapping]]] = ..., timeout_ns: _Optional[int] = ...) -> None: ...

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

class SyncCollective(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Result(_message.Message):
    __slots__ = ("request", "error", "done", "read", "event", "module", "function", "memory_usage", "profile")
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
    request: int
    error: _status_pb2.Status
    done: Done
    read: ReadResult
    event: EventResult
    module: ModuleResult
    function: FunctionResult
    memory_usage: MemoryUsageResult
    profile: ProfileResult
    def __init__(self, request: _Optional[int] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., read: _Optional[_Union[ReadResult, _Mapping]] = ..., event: _Optional[_Union[EventResult, _Mapping]] = ..., module: _Optional[_Union[ModuleResult, _Mapping]] = ..., function: _Optional[_Union[FunctionResult, _Mapping]] = ..., memory_usage: _Optional[_Union[MemoryUsageResult, _Mapping]] = ..., profile: _Optional[_Union[ProfileResult, _Mapping]] = ..., **kwargs) -> None: ...

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
    __slots__ = ("name", "parameters", "registers", "static_shared_bytes", "local_bytes", "constant_bytes", "max_threads_per_block")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    REGISTERS_FIELD_NUMBER: _ClassVar[int]
    STATIC_SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOCAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_THREADS_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    name: str
    parameters: _containers.RepeatedCompositeFieldContainer[Parameter]
    registers: int
    static_shared_bytes: int
    local_bytes: int
    constant_bytes: int
    max_threads_per_block: int
    def __init__(self, name: _Optional[str] = ..., parameters: _Optional[_Iterable[_Union[Parameter, _Mapping]]] = ..., registers: _Optional[int] = ..., static_shared_bytes: _Optional[int] = ..., local_bytes: _Optional[int] = ..., constant_bytes: _Optional[int] = ..., max_threads_per_block: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("allocations", "bytes_in_use", "bytes_padding", "bytes_reserved", "device_free", "device_total")
    ALLOCATIONS_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_USE_FIELD_NUMBER: _ClassVar[int]
    BYTES_PADDING_FIELD_NUMBER: _ClassVar[int]
    BYTES_RESERVED_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FREE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TOTAL_FIELD_NUMBER: _ClassVar[int]
    allocations: int
    bytes_in_use: int
    bytes_padding: int
    bytes_reserved: int
    device_free: int
    device_total: int
    def __init__(self, allocations: _Optional[int] = ..., bytes_in_use: _Optional[int] = ..., bytes_padding: _Optional[int] = ..., bytes_reserved: _Optional[int] = ..., device_free: _Optional[int] = ..., device_total: _Optional[int] = ...) -> None: ...

class ProfileResult(_message.Message):
    __slots__ = ("device_ns", "wall_ns")
    DEVICE_NS_FIELD_NUMBER: _ClassVar[int]
    WALL_NS_FIELD_NUMBER: _ClassVar[int]
    device_ns: int
    wall_ns: int
    def __init__(self, device_ns: _Optional[int] = ..., wall_ns: _Optional[int] = ...) -> None: ...
