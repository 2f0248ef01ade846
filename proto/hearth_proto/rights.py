"""The rights of tenants, and the right that each operation needs.

The front checks single calls by this table. Batches pass through it undecoded, so a device process checks the commands
of sessions that have not every right by the same table.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping

from hearth_proto.reasons import Reason, Refusal


class Right(enum.StrEnum):
    """A right of a tenant. Names as they stand in the configuration.

    What only looks, waits or gives back (streams, events, sync, memory usage, free) needs no right: a session can
    reach nothing by it that it was not allowed to make.
    """

    ALLOCATE = "allocate"  # memory: allocate, fill, copy, durable copies
    READ = "read"
    WRITE = "write"
    LAUNCH = "launch"  # modules, kernels, graphs, dispatch
    COLLECTIVE = "collective"
    PROFILE = "profile"  # profiles and traces
    PUBLISH = "publish"  # publish buffers to others
    ATTACH = "attach"  # attach what others published
    DEDICATED = "dedicated"  # device processes that no other session shares
    OBSERVE = "observe"  # see everybody's sessions, faults, traces and metrics, and change nothing
    ADMIN = "admin"  # see everybody's sessions, end them, drain, restart devices


EVERYTHING = frozenset(Right)
OPERATING = frozenset({Right.OBSERVE, Right.ADMIN})
"""Rights that reach beyond the tenant's own: each lets it see what is others'."""
ORDINARY = EVERYTHING - OPERATING
"""The rights of a tenant without `rights` in the configuration."""

_NONE: tuple[Right, ...] = ()
_ALLOCATE = (Right.ALLOCATE,)
_LAUNCH = (Right.LAUNCH,)
_PROFILE = (Right.PROFILE,)
_COLLECTIVE = (Right.COLLECTIVE,)

COMMANDS: Mapping[str, tuple[Right, ...]] = {
    "launches": _LAUNCH,
    "allocate": _ALLOCATE,
    "free": _NONE,
    "write": (Right.WRITE,),
    "read": (Right.READ,),
    "copy": _ALLOCATE,
    "fill": _ALLOCATE,
    "create_stream": _NONE,
    "destroy_stream": _NONE,
    "record_event": _NONE,
    "wait_event": _NONE,
    "query_event": _NONE,
    "elapsed_time": _NONE,
    "destroy_event": _NONE,
    "load_module": _LAUNCH,
    "get_function": _LAUNCH,
    "get_global": _LAUNCH,
    "unload_module": _LAUNCH,
    "describe_module": _LAUNCH,
    "describe_function": _LAUNCH,
    "launch": _LAUNCH,
    "sync": _NONE,
    "flush": _NONE,
    "memory_usage": _NONE,
    "memory_cleanup": _NONE,
    "start_profile": _PROFILE,
    "end_profile": _PROFILE,
    "all_reduce": _COLLECTIVE,
    "sync_collective": _COLLECTIVE,
    "collective": _COLLECTIVE,
    "dispatch": (Right.LAUNCH, Right.WRITE, Right.READ),  # arrays up, kernel, arrays down
    "begin_capture": _LAUNCH,
    "end_capture": _LAUNCH,
    "launch_graph": _LAUNCH,
    "update_graph": _LAUNCH,
    "destroy_graph": _LAUNCH,
    "prepare": _LAUNCH,
    "launch_prepared": _LAUNCH,
    "destroy_prepared": _LAUNCH,
    "create_tensor_map": _LAUNCH,
    "destroy_tensor_map": _LAUNCH,
    "occupancy": _LAUNCH,
    "set_allocation_mode": _ALLOCATE,
    "start_trace": _PROFILE,
    "end_trace": _PROFILE,
    "set_durable": _ALLOCATE,
    "checkpoint": _ALLOCATE,
}
"""Rights by the command's field in `Command`: all of them are needed."""

CALLS: Mapping[str, tuple[Right, ...]] = {
    "Execute": _NONE,  # its commands are checked one by one
    "Upload": (Right.WRITE,),
    "Download": (Right.READ,),
    "AttachmentStatus": _NONE,
    "TransferStatus": _NONE,
    "OpenBulk": _NONE,  # its data is requested by commands; a tenant that may neither write nor read gets none
    "Publish": (Right.PUBLISH,),
    "Unpublish": (Right.PUBLISH,),
    "AttachBuffer": (Right.ATTACH,),
    "ListPublished": _NONE,  # lists what the caller may attach
    "ExportIpc": (Right.READ, Right.WRITE),  # a client that maps it does both, unchecked
    "ReleaseIpc": _NONE,
}
"""Rights by the method of DeviceService, for methods that carry no single command."""


OF_COMMANDS: frozenset[Right] = frozenset(right for needed in COMMANDS.values() for right in needed)
"""Rights which together allow every command."""


def allowed(rights: Collection[str]) -> frozenset[str]:
    """Returns the commands that a tenant with these rights may send. Commands that the table does not have are not
    among them."""
    return frozenset(kind for kind, needed in COMMANDS.items() if all(right in rights for right in needed))


def missing(needed: Collection[Right], rights: Collection[str]) -> list[Right]:
    """Returns the rights that are needed and not there."""
    return [right for right in needed if right not in rights]


def permission_denied(operation: str, lacking: Collection[str], tenant: str) -> Refusal:
    """`operation` as in "launch" or "Drain"; `lacking`: the rights that would allow it (none: nothing would)."""
    names = ", ".join(lacking) or "none that there is"
    return Refusal(
        Reason.PERMISSION_DENIED,
        f"Tenant {tenant!r} may not {operation}: that needs the right {names}.",
        fix=f"Use credentials of a tenant that has it, or ask the daemon's operator to add it to the rights of "
        f"{tenant!r}.",
        details={"operation": operation, "right": names, "tenant": tenant},
    )
