"""Rights of tenants, and the rights that each operation needs.

The front checks single calls against these tables. Batches pass through the front undecoded, so a device process checks
the commands of sessions that lack some right, against the same table.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping

from hearth_proto.reasons import Reason, Refusal


class Right(enum.StrEnum):
    """A right of a tenant, named as in the configuration.

    Operations that only query, wait or release (streams, events, sync, memory usage, free) need no right: they give a
    session access to nothing that it was not allowed to create.
    """

    ALLOCATE = "allocate"  # memory: allocate, fill, copy, durable copies
    READ = "read"
    WRITE = "write"
    LAUNCH = "launch"  # modules, kernels, graphs, dispatch
    COLLECTIVE = "collective"
    PROFILE = "profile"  # profiles and traces
    PUBLISH = "publish"  # publish buffers and events to other sessions
    ATTACH = "attach"  # attach buffers and events that other sessions published
    DEDICATED = "dedicated"  # device processes that no other session shares
    OBSERVE = "observe"  # see all sessions, faults, traces and metrics, but change nothing
    ADMIN = "admin"  # see and end all sessions, drain, restart devices


EVERYTHING = frozenset(Right)
OPERATING = frozenset({Right.OBSERVE, Right.ADMIN})
"""Operator rights, which reach beyond the tenant's own sessions: each allows access to data of other tenants."""
ORDINARY = EVERYTHING - OPERATING
"""Rights of a tenant that has no `rights` in the configuration."""

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
    "write_pointers": (Right.WRITE,),
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
    "publish_event": (Right.PUBLISH,),
    "attach_event": (Right.ATTACH,),
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
    "dispatch": (Right.LAUNCH, Right.WRITE, Right.READ),  # uploads, launches and downloads
    "begin_capture": _LAUNCH,
    "end_capture": _LAUNCH,
    "begin_conditional": _LAUNCH,
    "end_conditional": _LAUNCH,
    "begin_branch": _LAUNCH,
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
    "cancel": _NONE,
}
"""Rights that each command needs, all of them, by the command's field in `Command`."""

CALLS: Mapping[str, tuple[Right, ...]] = {
    "Execute": _NONE,  # its commands are checked individually
    "Upload": (Right.WRITE,),
    "Download": (Right.READ,),
    "AttachmentStatus": _NONE,
    "TransferStatus": _NONE,
    "OpenBulk": _NONE,  # its data is requested by commands; a tenant that may neither write nor read gets none
    "Publish": (Right.PUBLISH,),
    "Unpublish": (Right.PUBLISH,),
    "AttachBuffer": (Right.ATTACH,),
    "ListPublished": _NONE,  # lists what the caller may attach
    "ExportIpc": (Right.READ, Right.WRITE),  # a client that maps the memory reads and writes it unchecked
    "ReleaseIpc": _NONE,
}
"""Rights that each method of DeviceService needs, for methods that do not carry a single command."""


OF_COMMANDS: frozenset[Right] = frozenset(right for needed in COMMANDS.values() for right in needed)
"""The rights that together allow every command."""


def allowed(rights: Collection[str]) -> frozenset[str]:
    """Returns the commands that a tenant with these rights may send.

    Commands that are not in the table are never allowed.
    """
    return frozenset(kind for kind, needed in COMMANDS.items() if all(right in rights for right in needed))


def missing(needed: Collection[Right], rights: Collection[str]) -> list[Right]:
    """Returns the rights in `needed` that are not in `rights`."""
    return [right for right in needed if right not in rights]


def permission_denied(operation: str, lacking: Collection[str], tenant: str) -> Refusal:
    """Returns the refusal of `operation` (for example "launch" or "Drain") for the tenant.

    `lacking`: the rights that would allow the operation; empty: no right would.
    """
    names = ", ".join(lacking)
    explanation = f"it requires the right {names}" if names else "no right allows it"
    return Refusal(
        Reason.PERMISSION_DENIED,
        f"Tenant {tenant!r} may not {operation}: {explanation}.",
        fix=f"Use credentials of a tenant with this right, or ask the daemon's operator to add it to the rights of "
        f"{tenant!r}.",
        details={"operation": operation, "right": names or "none", "tenant": tenant},
    )
