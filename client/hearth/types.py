"""Plain data with which the daemon describes nodes, devices, sessions and memory."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from hearth_proto.v1 import commands_pb2, node_pb2


def _fields(cls: Any, message: Message, **converted: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass, by name: those in `converted`, and otherwise those of the wire message."""
    plain = [field.name for field in fields(cls) if field.name not in converted]
    return {name: getattr(message, name) for name in plain} | converted


@dataclass(frozen=True)
class DeviceProperties:
    """Properties of a device. Names and meanings are those of ``cudaDeviceProp``; sizes are in bytes."""

    name: str
    backend: str
    """``"cuda"`` or ``"cpu"``."""
    uuid: str
    compute_capability: tuple[int, int]
    total_memory: int
    multiprocessor_count: int
    warp_size: int
    max_threads_per_block: int
    max_block_dim: tuple[int, ...]
    max_grid_dim: tuple[int, ...]
    shared_mem_per_block: int
    shared_mem_per_block_optin: int
    max_threads_per_multiprocessor: int
    max_blocks_per_multiprocessor: int
    registers_per_block: int
    l2_cache_bytes: int
    clock_rate_khz: int
    driver_version: str
    runtime_version: str
    features: frozenset[str]
    memory_alignment: int
    """Alignment of every buffer, in bytes."""
    confinement: str = ""
    """Confinement of the device's processes by the operating system's kernel, e.g. ``"landlock 7, seccomp"``; empty:
    none."""
    access_policy_max_window_size: int = 0
    """Size of the largest access-policy window; 0: the device has none."""
    persisting_l2_cache_max_size: int = 0
    """Size of the largest part of the L2 cache for persisting accesses."""
    persisting_l2_cache_size: int = 0
    """Size of the part of the L2 cache that the daemon has set aside for persisting accesses."""

    @classmethod
    def of(cls, message: node_pb2.DeviceProperties) -> DeviceProperties:
        """Builds the properties from the wire message.

        Args:
            message: The daemon's description of the device.
        """
        return cls(
            **_fields(
                cls,
                message,
                compute_capability=(message.compute_capability_major, message.compute_capability_minor),
                max_block_dim=tuple(message.max_block_dim),
                max_grid_dim=tuple(message.max_grid_dim),
                features=frozenset(message.features),
            )
        )


@dataclass(frozen=True)
class ProcessInfo:
    """A process that serves a device: all sessions, the sessions of one tenant, or one session."""

    pid: int
    generation: int
    state: str
    tenant: str
    """The tenant that the process serves; empty: all tenants."""
    session_id: str
    """The session that the process serves exclusively; empty: it is not dedicated to a session."""
    memory_granted: int
    """Bytes of device memory that the process may hold."""
    memory_held: int
    """Bytes of device memory that the process holds, by its last report."""

    @classmethod
    def of(cls, message: node_pb2.DeviceProcess) -> ProcessInfo:
        """Builds the process's description from the wire message.

        Args:
            message: The daemon's description of the process.
        """
        return cls(**_fields(cls, message, state=_STATES.get(int(message.state), "unknown")))


@dataclass(frozen=True)
class DeviceInfo:
    """A device, as the node's daemon describes it."""

    ordinal: int
    state: str
    """``"starting"``, ``"serving"``, ``"lost"``, ``"fenced"`` or ``"stalled"``; ``"unknown"``: another
    state, of a newer daemon."""
    generation: int
    """Number of the device's present process; arrays of an earlier generation are lost."""
    properties: DeviceProperties
    pid: int
    detail: str
    """Reason why the device is not serving; empty if it is."""
    processes: tuple[ProcessInfo, ...] = ()
    """The device's processes that this client may see."""

    @classmethod
    def of(cls, message: node_pb2.Device) -> DeviceInfo:
        """Builds the device's description from the wire message.

        Args:
            message: The daemon's description of the device.
        """
        return cls(
            **_fields(
                cls,
                message,
                state=_STATES.get(int(message.state), "unknown"),
                properties=DeviceProperties.of(message.properties),
                processes=tuple(ProcessInfo.of(process) for process in message.processes),
            )
        )


_DEDICATED = 2
"""Value of ``ISOLATION_DEDICATED`` on the wire."""
_STATES = {1: "starting", 2: "serving", 3: "lost", 4: "fenced", 5: "stalled"}


@dataclass(frozen=True)
class NodeInfo:
    """A node, as its daemon describes it."""

    name: str
    server_version: str
    protocol: tuple[int, int]
    """Oldest and newest protocol version that the daemon supports."""
    devices: tuple[DeviceInfo, ...]
    features: frozenset[str]
    draining: bool

    @classmethod
    def of(cls, message: node_pb2.DescribeResponse) -> NodeInfo:
        """Builds the node's description from the wire message.

        Args:
            message: The daemon's description of the node.
        """
        return cls(
            **_fields(
                cls,
                message,
                name=message.node,
                protocol=(message.protocol.min, message.protocol.max),
                devices=tuple(DeviceInfo.of(device) for device in message.devices),
                features=frozenset(message.features),
            )
        )


@dataclass(frozen=True)
class SessionInfo:
    """A session on a node."""

    session_id: str
    client_name: str
    opened: float
    """Time when the session was opened, in seconds since 1970."""
    connected: bool
    lease_left: float
    """Seconds until the session ends unless its client reconnects; meaningful only while it is not connected."""
    devices: tuple[int, ...]
    tenant: str = ""
    isolation: str = "shared"
    device_seconds: float = 0.0
    """Device time that the session has used, in seconds."""
    client_process: str = ""
    """Host and pid of the client, ``host:pid``. Empty: the client did not send them."""

    @classmethod
    def of(cls, message: node_pb2.SessionInfo) -> SessionInfo:
        """Builds the session's description from the wire message.

        Args:
            message: The daemon's description of the session.
        """
        return cls(
            **_fields(
                cls,
                message,
                opened=message.opened_unix_ns / 1e9,
                lease_left=message.lease_left_ns / 1e9,
                devices=tuple(message.devices),
                isolation="dedicated" if message.isolation == _DEDICATED else "shared",
                device_seconds=message.device_ns / 1e9,
            )
        )


@dataclass(frozen=True)
class MemoryUsage:
    """Memory of a device, for all sessions and for this session; sizes are in bytes."""

    allocations: int
    """Number of live allocations of this session."""
    bytes_in_use: int
    """Bytes that this session's live allocations asked for."""
    bytes_padding: int
    """Bytes added to those allocations by rounding up to the granularity of the memory pool."""
    bytes_reserved: int
    """Bytes that the device process's memory pool holds, for all sessions."""
    device_free: int
    device_total: int
    bytes_pinned: int = 0
    """Bytes of page-locked host memory that the device process holds for copies, for all sessions."""
    bytes_pinned_in_use: int = 0
    """Part of `bytes_pinned` that this session's copies in progress use."""
    bytes_persistent: int = 0
    """Bytes that are freed but reserved for this session: see `Device.persistent_memory`."""
    bytes_peak: int = 0
    """Largest value that `bytes_in_use` has had."""
    bytes_durable: int = 0
    """Bytes of the daemon's host memory that hold copies of this session's durable arrays."""

    def _repr_html_(self) -> str:
        from hearth import html_repr

        rows = [
            (name.removeprefix("bytes_").replace("_", " "), value if name == "allocations" else html_repr.size(value))
            for name, value in vars(self).items()
            if value or not name.startswith("bytes_")
        ]
        return html_repr.pairs("MemoryUsage", rows)

    @classmethod
    def of(cls, message: commands_pb2.MemoryUsageResult) -> MemoryUsage:
        """Builds the memory usage from the wire message.

        Args:
            message: The device process's answer.
        """
        return cls(**_fields(cls, message))
