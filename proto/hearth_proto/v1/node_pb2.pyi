from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeviceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_STATE_UNSPECIFIED: _ClassVar[DeviceState]
    DEVICE_STATE_STARTING: _ClassVar[DeviceState]
    DEVICE_STATE_SERVING: _ClassVar[DeviceState]
    DEVICE_STATE_LOST: _ClassVar[DeviceState]
    DEVICE_STATE_FENCED: _ClassVar[DeviceState]
    DEVICE_STATE_STALLED: _ClassVar[DeviceState]

class Isolation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ISOLATION_UNSPECIFIED: _ClassVar[Isolation]
    ISOLATION_SHARED: _ClassVar[Isolation]
    ISOLATION_DEDICATED: _ClassVar[Isolation]
DEVICE_STATE_UNSPECIFIED: DeviceState
DEVICE_STATE_STARTING: DeviceState
DEVICE_STATE_SERVING: DeviceState
DEVICE_STATE_LOST: DeviceState
DEVICE_STATE_FENCED: DeviceState
DEVICE_STATE_STALLED: DeviceState
ISOLATION_UNSPECIFIED: Isolation
ISOLATION_SHARED: Isolation
ISOLATION_DEDICATED: Isolation

class VersionRange(_message.Message):
    __slots__ = ("min", "max")
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    min: int
    max: int
    def __init__(self, min: _Optional[int] = ..., max: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("node", "server_version", "protocol", "devices", "features", "draining")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    node: str
    server_version: str
    protocol: VersionRange
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    features: _containers.RepeatedScalarFieldContainer[str]
    draining: bool
    def __init__(self, node: _Optional[str] = ..., server_version: _Optional[str] = ..., protocol: _Optional[_Union[VersionRange, _Mapping]] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., features: _Optional[_Iterable[str]] = ..., draining: bool = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("ordinal", "state", "generation", "properties", "pid", "detail", "processes")
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    ordinal: int
    state: DeviceState
    generation: int
    properties: DeviceProperties
    pid: int
    detail: str
    processes: _containers.RepeatedCompositeFieldContainer[DeviceProcess]
    def __init__(self, ordinal: _Optional[int] = ..., state: _Optional[_Union[DeviceState, str]] = ..., generation: _Optional[int] = ..., properties: _Optional[_Union[DeviceProperties, _Mapping]] = ..., pid: _Optional[int] = ..., detail: _Optional[str] = ..., processes: _Optional[_Iterable[_Union[DeviceProcess, _Mapping]]] = ...) -> None: ...

class DeviceProcess(_message.Message):
    __slots__ = ("pid", "generation", "state", "tenant", "session_id", "memory_granted", "memory_held")
    PID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GRANTED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_HELD_FIELD_NUMBER: _ClassVar[int]
    pid: int
    generation: int
    state: DeviceState
    tenant: str
    session_id: str
    memory_granted: int
    memory_held: int
    def __init__(self, pid: _Optional[int] = ..., generation: _Optional[int] = ..., state: _Optional[_Union[DeviceState, str]] = ..., tenant: _Optional[str] = ..., session_id: _Optional[str] = ..., memory_granted: _Optional[int] = ..., memory_held: _Optional[int] = ...) -> None: ...

class DeviceProperties(_message.Message):
    __slots__ = ("name", "backend", "uuid", "compute_capability_major", "compute_capability_minor", "total_memory", "multiprocessor_count", "warp_size", "max_threads_per_block", "max_block_dim", "max_grid_dim", "shared_mem_per_block", "shared_mem_per_block_optin", "max_threads_per_multiprocessor", "max_blocks_per_multiprocessor", "registers_per_block", "l2_cache_bytes", "clock_rate_khz", "driver_version", "runtime_version", "features", "memory_alignment", "confinement", "access_policy_max_window_size", "persisting_l2_cache_max_size", "persisting_l2_cache_size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_CAPABILITY_MAJOR_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_CAPABILITY_MINOR_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MEMORY_FIELD_NUMBER: _ClassVar[int]
    MULTIPROCESSOR_COUNT_FIELD_NUMBER: _ClassVar[int]
    WARP_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_THREADS_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    MAX_BLOCK_DIM_FIELD_NUMBER: _ClassVar[int]
    MAX_GRID_DIM_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEM_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEM_PER_BLOCK_OPTIN_FIELD_NUMBER: _ClassVar[int]
    MAX_THREADS_PER_MULTIPROCESSOR_FIELD_NUMBER: _ClassVar[int]
    MAX_BLOCKS_PER_MULTIPROCESSOR_FIELD_NUMBER: _ClassVar[int]
    REGISTERS_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    L2_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLOCK_RATE_KHZ_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    CONFINEMENT_FIELD_NUMBER: _ClassVar[int]
    ACCESS_POLICY_MAX_WINDOW_SIZE_FIELD_NUMBER: _ClassVar[int]
    PERSISTING_L2_CACHE_MAX_SIZE_FIELD_NUMBER: _ClassVar[int]
    PERSISTING_L2_CACHE_SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    backend: str
    uuid: str
    compute_capability_major: int
    compute_capability_minor: int
    total_memory: int
    multiprocessor_count: int
    warp_size: int
    max_threads_per_block: int
    max_block_dim: _containers.RepeatedScalarFieldContainer[int]
    max_grid_dim: _containers.RepeatedScalarFieldContainer[int]
    shared_mem_per_block: int
    shared_mem_per_block_optin: int
    max_threads_per_multiprocessor: int
    max_blocks_per_multiprocessor: int
    registers_per_block: int
    l2_cache_bytes: int
    clock_rate_khz: int
    driver_version: str
    runtime_version: str
    features: _containers.RepeatedScalarFieldContainer[str]
    memory_alignment: int
    confinement: str
    access_policy_max_window_size: int
    persisting_l2_cache_max_size: int
    persisting_l2_cache_size: int
    def __init__(self, name: _Optional[str] = ..., backend: _Optional[str] = ..., uuid: _Optional[str] = ..., compute_capability_major: _Optional[int] = ..., compute_capability_minor: _Optional[int] = ..., total_memory: _Optional[int] = ..., multiprocessor_count: _Optional[int] = ..., warp_size: _Optional[int] = ..., max_threads_per_block: _Optional[int] = ..., max_block_dim: _Optional[_Iterable[int]] = ..., max_grid_dim: _Optional[_Iterable[int]] = ..., shared_mem_per_block: _Optional[int] = ..., shared_mem_per_block_optin: _Optional[int] = ..., max_threads_per_multiprocessor: _Optional[int] = ..., max_blocks_per_multiprocessor: _Optional[int] = ..., registers_per_block: _Optional[int] = ..., l2_cache_bytes: _Optional[int] = ..., clock_rate_khz: _Optional[int] = ..., driver_version: _Optional[str] = ..., runtime_version: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., memory_alignment: _Optional[int] = ..., confinement: _Optional[str] = ..., access_policy_max_window_size: _Optional[int] = ..., persisting_l2_cache_max_size: _Optional[int] = ..., persisting_l2_cache_size: _Optional[int] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("protocol", "client_version", "client_name", "isolation", "launch_timeout_ns", "client_process")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_TIMEOUT_NS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_PROCESS_FIELD_NUMBER: _ClassVar[int]
    protocol: VersionRange
    client_version: str
    client_name: str
    isolation: Isolation
    launch_timeout_ns: int
    client_process: str
    def __init__(self, protocol: _Optional[_Union[VersionRange, _Mapping]] = ..., client_version: _Optional[str] = ..., client_name: _Optional[str] = ..., isolation: _Optional[_Union[Isolation, str]] = ..., launch_timeout_ns: _Optional[int] = ..., client_process: _Optional[str] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("session_id", "session_token", "protocol", "server_version", "lease_ns", "limits", "devices", "features", "node", "tenant", "isolation")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_NS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    session_token: str
    protocol: int
    server_version: str
    lease_ns: int
    limits: SessionLimits
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    features: _containers.RepeatedScalarFieldContainer[str]
    node: str
    tenant: str
    isolation: Isolation
    def __init__(self, session_id: _Optional[str] = ..., session_token: _Optional[str] = ..., protocol: _Optional[int] = ..., server_version: _Optional[str] = ..., lease_ns: _Optional[int] = ..., limits: _Optional[_Union[SessionLimits, _Mapping]] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., features: _Optional[_Iterable[str]] = ..., node: _Optional[str] = ..., tenant: _Optional[str] = ..., isolation: _Optional[_Union[Isolation, str]] = ...) -> None: ...

class SessionLimits(_message.Message):
    __slots__ = ("max_inline_bytes", "max_chunk_bytes", "max_batch_bytes", "max_batches_in_flight", "max_code_bytes")
    MAX_INLINE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCHES_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_CODE_BYTES_FIELD_NUMBER: _ClassVar[int]
    max_inline_bytes: int
    max_chunk_bytes: int
    max_batch_bytes: int
    max_batches_in_flight: int
    max_code_bytes: int
    def __init__(self, max_inline_bytes: _Optional[int] = ..., max_chunk_bytes: _Optional[int] = ..., max_batch_bytes: _Optional[int] = ..., max_batches_in_flight: _Optional[int] = ..., max_code_bytes: _Optional[int] = ...) -> None: ...

class RenewSessionRequest(_message.Message):
    __slots__ = ("session_token",)
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    session_token: str
    def __init__(self, session_token: _Optional[str] = ...) -> None: ...

class RenewSessionResponse(_message.Message):
    __slots__ = ("lease_ns",)
    LEASE_NS_FIELD_NUMBER: _ClassVar[int]
    lease_ns: int
    def __init__(self, lease_ns: _Optional[int] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("session_token",)
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    session_token: str
    def __init__(self, session_token: _Optional[str] = ...) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ("running",)
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    running: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, running: _Optional[_Iterable[int]] = ...) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("sessions",)
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionInfo]
    def __init__(self, sessions: _Optional[_Iterable[_Union[SessionInfo, _Mapping]]] = ...) -> None: ...

class SessionInfo(_message.Message):
    __slots__ = ("session_id", "client_name", "opened_unix_ns", "connected", "lease_left_ns", "devices", "tenant", "isolation", "device_ns", "client_process")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    OPENED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    LEASE_LEFT_NS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_PROCESS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    client_name: str
    opened_unix_ns: int
    connected: bool
    lease_left_ns: int
    devices: _containers.RepeatedScalarFieldContainer[int]
    tenant: str
    isolation: Isolation
    device_ns: int
    client_process: str
    def __init__(self, session_id: _Optional[str] = ..., client_name: _Optional[str] = ..., opened_unix_ns: _Optional[int] = ..., connected: bool = ..., lease_left_ns: _Optional[int] = ..., devices: _Optional[_Iterable[int]] = ..., tenant: _Optional[str] = ..., isolation: _Optional[_Union[Isolation, str]] = ..., device_ns: _Optional[int] = ..., client_process: _Optional[str] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("sessions",)
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: int
    def __init__(self, sessions: _Optional[int] = ...) -> None: ...

class EndSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class EndSessionResponse(_message.Message):
    __slots__ = ("running",)
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    running: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, running: _Optional[_Iterable[int]] = ...) -> None: ...

class RestartDeviceRequest(_message.Message):
    __slots__ = ("device",)
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    device: int
    def __init__(self, device: _Optional[int] = ...) -> None: ...

class RestartDeviceResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("node", "device")
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    node: int
    device: int
    def __init__(self, node: _Optional[int] = ..., device: _Optional[int] = ...) -> None: ...

class GroupTicket(_message.Message):
    __slots__ = ("addresses", "secret", "certificate_sha256")
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_SHA256_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    secret: bytes
    certificate_sha256: bytes
    def __init__(self, addresses: _Optional[_Iterable[str]] = ..., secret: _Optional[bytes] = ..., certificate_sha256: _Optional[bytes] = ...) -> None: ...

class CreateGroupRequest(_message.Message):
    __slots__ = ("session_token", "members", "timeout_ns")
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NS_FIELD_NUMBER: _ClassVar[int]
    session_token: str
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    timeout_ns: int
    def __init__(self, session_token: _Optional[str] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., timeout_ns: _Optional[int] = ...) -> None: ...

class CreateGroupResponse(_message.Message):
    __slots__ = ("group", "ticket")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    group: bytes
    ticket: GroupTicket
    def __init__(self, group: _Optional[bytes] = ..., ticket: _Optional[_Union[GroupTicket, _Mapping]] = ...) -> None: ...

class JoinGroupRequest(_message.Message):
    __slots__ = ("session_token", "group", "node", "members", "ticket", "timeout_ns")
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NS_FIELD_NUMBER: _ClassVar[int]
    session_token: str
    group: bytes
    node: int
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    ticket: GroupTicket
    timeout_ns: int
    def __init__(self, session_token: _Optional[str] = ..., group: _Optional[bytes] = ..., node: _Optional[int] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., ticket: _Optional[_Union[GroupTicket, _Mapping]] = ..., timeout_ns: _Optional[int] = ...) -> None: ...

class JoinGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveGroupRequest(_message.Message):
    __slots__ = ("session_token", "group")
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    session_token: str
    group: bytes
    def __init__(self, session_token: _Optional[str] = ..., group: _Optional[bytes] = ...) -> None: ...

class LeaveGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeGroupsRequest(_message.Message):
    __slots__ = ("session_token",)
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    session_token: str
    def __init__(self, session_token: _Optional[str] = ...) -> None: ...

class DescribeGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupInfo]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupInfo, _Mapping]]] = ...) -> None: ...

class GroupInfo(_message.Message):
    __slots__ = ("group", "members", "state", "detail", "operations", "aborts")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    ABORTS_FIELD_NUMBER: _ClassVar[int]
    group: bytes
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    state: str
    detail: str
    operations: _containers.RepeatedCompositeFieldContainer[GroupOperation]
    aborts: int
    def __init__(self, group: _Optional[bytes] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., state: _Optional[str] = ..., detail: _Optional[str] = ..., operations: _Optional[_Iterable[_Union[GroupOperation, _Mapping]]] = ..., aborts: _Optional[int] = ...) -> None: ...

class GroupOperation(_message.Message):
    __slots__ = ("sequence", "what", "state", "presented", "presented_unix_ns", "launched_unix_ns", "finished_unix_ns", "error")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PRESENTED_FIELD_NUMBER: _ClassVar[int]
    PRESENTED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    LAUNCHED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    what: str
    state: str
    presented: _containers.RepeatedScalarFieldContainer[int]
    presented_unix_ns: int
    launched_unix_ns: int
    finished_unix_ns: int
    error: str
    def __init__(self, sequence: _Optional[int] = ..., what: _Optional[str] = ..., state: _Optional[str] = ..., presented: _Optional[_Iterable[int]] = ..., presented_unix_ns: _Optional[int] = ..., launched_unix_ns: _Optional[int] = ..., finished_unix_ns: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...
