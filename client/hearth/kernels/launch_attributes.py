"""Further attributes of a launch, with CUDA's names: programmatic dependent launch, priority, L2, domains.

>>> attributes = hearth.LaunchAttributes(
...     programmatic_stream_serialization=True,
...     access_policy_window=hearth.AccessPolicyWindow(weights, hit_ratio=0.6),
... )
>>> kernel(grid, block, (weights, x), attributes=attributes)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hearth.arrays.base_array import BaseArray
from hearth.errors import ArgumentError, UnsupportedError
from hearth_proto.later import commands_pb2
from hearth_proto.launches import ACCESS_PROPERTIES, MEM_SYNC_DOMAINS, AccessWindow, Attributes

if TYPE_CHECKING:
    from hearth.session.connection import Connection

_PRIORITIES = range(-(2**16), 2**16)


@dataclass(frozen=True, eq=False)
class AccessPolicyWindow:
    """Treatment in the L2 cache of a kernel's accesses to one array, as ``cudaAccessPolicyWindow``.

    A hint: it changes no result. A part of an array is given by a slice, such as ``x[:1024]``.
    """

    array: Any
    """Contiguous device array: the window is its range of memory, at most
    ``gpu.properties.access_policy_max_window_size`` bytes."""
    hit_ratio: float = 1.0
    """Fraction of the accesses, from 0 to 1, that get the property `hit`; the others get `miss`."""
    hit: Literal["normal", "streaming", "persisting"] = "persisting"
    miss: Literal["normal", "streaming"] = "streaming"

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            ArgumentError: A value is invalid.
        """
        if not isinstance(self.array, BaseArray):
            raise _invalid("array", self.array, "a device array or a slice of one")
        if not (self.array.flags.c_contiguous or self.array.flags.f_contiguous) or not self.array.nbytes:
            raise _invalid("array", self.array, "a contiguous array that is not empty")
        ratio = self.hit_ratio
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio <= 1:
            raise _invalid("hit_ratio", ratio, "a number from 0 to 1")
        if self.hit not in ACCESS_PROPERTIES:
            raise _invalid("hit", self.hit, f"one of {_listed(ACCESS_PROPERTIES)}")
        if self.miss not in ACCESS_PROPERTIES[:2]:
            raise _invalid("miss", self.miss, f"one of {_listed(ACCESS_PROPERTIES[:2])}")


@dataclass(frozen=True)
class LaunchAttributes:
    """Attributes of a launch, with the names and meanings of ``cudaLaunchAttribute``.

    They change when and how fast a kernel runs, and not its result. The CPU backend accepts and ignores them.
    """

    programmatic_stream_serialization: bool = False
    """Lets the kernel start before the preceding kernel of its stream has completed: programmatic dependent launch. The
    kernel must call ``cudaGridDependencySynchronize()`` before it touches memory that earlier work uses. Needs compute
    capability 9.0."""
    priority: int | None = None
    """Priority in place of the stream's, by the same rule: lower is more urgent, the tenant's priority is added, and
    the device's range limits the sum. None: the stream's."""
    access_policy_window: AccessPolicyWindow | None = None
    """Treatment of one array in the L2 cache; None: as the device does. Needs compute capability 8.0."""
    mem_sync_domain: Literal["default", "remote"] = "default"
    """Memory-sync domain, ``cudaLaunchMemSyncDomain``. Fences of a kernel do not wait for writes of kernels in another
    domain. ``"remote"`` needs compute capability 9.0."""

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            ArgumentError: A value is invalid.
        """
        if not isinstance(self.programmatic_stream_serialization, bool):
            raise _invalid("programmatic_stream_serialization", self.programmatic_stream_serialization, "True or False")
        priority = self.priority
        if priority is not None and (
            isinstance(priority, bool) or not isinstance(priority, int) or priority not in _PRIORITIES
        ):
            raise _invalid("priority", priority, f"None or an integer from {_PRIORITIES[0]} to {_PRIORITIES[-1]}")
        if not isinstance(self.access_policy_window, AccessPolicyWindow | None):
            raise _invalid("access_policy_window", self.access_policy_window, "a hearth.AccessPolicyWindow or None")
        if self.mem_sync_domain not in MEM_SYNC_DOMAINS:
            raise _invalid("mem_sync_domain", self.mem_sync_domain, f"one of {_listed(MEM_SYNC_DOMAINS)}")


def packed(attributes: LaunchAttributes, connection: Connection) -> Attributes:
    """Returns the attributes for the packed record of a launch.

    Args:
        attributes: The keyword `attributes` of a launch or a dispatch.
        connection: The connection to the device that runs the kernel.

    Raises:
        ArgumentError: `attributes` is no `LaunchAttributes`, or its window is an array of another device or session.
        InvalidHandleError, BufferLostError: The array of the window is freed or lost.
        UnsupportedError: The daemon is too old.
    """
    if not isinstance(attributes, LaunchAttributes):
        raise ArgumentError(
            f"attributes is {attributes!r}, which is a {type(attributes).__name__}.",
            fix="pass a hearth.LaunchAttributes(...) or None.",
        )
    if not connection.limits.launch_attributes:
        raise UnsupportedError(
            "the daemon does not take attributes of launches.",
            fix='leave attributes out, or use a daemon with the feature "launch_attributes".',
        )
    return Attributes(
        attributes.programmatic_stream_serialization,
        attributes.priority,
        MEM_SYNC_DOMAINS.index(attributes.mem_sync_domain),
        None
        if attributes.access_policy_window is None
        else _packed_window(attributes.access_policy_window, connection),
    )


def message_of(attributes: LaunchAttributes, connection: Connection) -> commands_pb2.LaunchAttributes:
    """Returns the attributes as the message of a dispatch. Raises the errors of `packed`.

    Args:
        attributes: The keyword `attributes` of a dispatch.
        connection: The connection to the device that runs the kernel.
    """
    programmatic, priority, domain, window = packed(attributes, connection)
    return commands_pb2.LaunchAttributes(
        programmatic_stream_serialization=programmatic,
        priority=priority,
        mem_sync_domain=commands_pb2.MemSyncDomain.Name(domain),
        access_policy_window=None
        if window is None
        else commands_pb2.AccessPolicyWindow(
            buffer=window.buffer,
            offset=window.offset,
            size=window.size,
            hit_ratio=window.hit_ratio,
            hit=commands_pb2.AccessProperty.Name(window.hit),
            miss=commands_pb2.AccessProperty.Name(window.miss),
        ),
    )


def _packed_window(window: AccessPolicyWindow, connection: Connection) -> AccessWindow:
    if window.array._connection is not connection:
        raise ArgumentError(
            f"the access-policy window has {window.array!r}, which belongs to another device or session.",
            fix="use an array of the device that runs the kernel.",
        )
    connection.check(window.array._memory, f"the access-policy window's array, {window.array!r},")
    return AccessWindow(
        window.array._memory.handle,
        window.array._offset,
        window.array.nbytes,
        window.hit_ratio,
        ACCESS_PROPERTIES.index(window.hit),
        ACCESS_PROPERTIES.index(window.miss),
    )


def _invalid(name: str, value: object, allowed: str) -> ArgumentError:
    return ArgumentError(f"{name} is {value!r}.", fix=f"pass {allowed}.", details={"argument": name})


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names))
