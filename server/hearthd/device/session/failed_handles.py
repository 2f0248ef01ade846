"""Tombstones of failed handles: a later use of such a handle fails with the reason why its creation was refused.

A client that does not wait for the result of a creation may use a handle that was never created. A creation that fails
when it runs (a compile, an allocation) leaves an object that carries the reason; a creation that is refused on arrival
is recorded here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hearth_proto.reasons import Refusal
from hearthd.device.session.handle_table import HandleTable
from hearthd.device.session.session import DeviceSession

CreatedHandles = Callable[[DeviceSession, Any], tuple[HandleTable[Any], Iterable[int]]]
DestroyedHandle = Callable[[DeviceSession, Any], tuple[HandleTable[Any], int]]

CREATED: dict[str, CreatedHandles] = {
    "create_stream": lambda session, command: (session.streams, (command.stream,)),
    "allocate": lambda session, command: (
        session.buffers,
        [part.buffer for part in command.parts] or (command.buffer,),
    ),
    "load_module": lambda session, command: (session.modules, (command.module,)),
    "get_function": lambda session, command: (session.functions, (command.function,)),
    "get_global": lambda session, command: (session.buffers, (command.buffer,)),
    "record_event": lambda session, command: (session.events, (command.event,)),
    "attach_event": lambda session, command: (session.events, (command.event,)),
    "create_tensor_map": lambda session, command: (session.tensor_maps, (command.tensor_map,)),
    "begin_capture": lambda session, command: (session.graphs, (command.graph,)),
    "prepare": lambda session, command: (session.prepared, (command.prepared,)),
    "start_profile": lambda session, command: (session.profiles, (command.profile,)),
}
"""The handles that each kind of command creates."""

DESTROYED: dict[str, DestroyedHandle] = {
    "destroy_stream": lambda session, command: (session.streams, command.stream),
    "unload_module": lambda session, command: (session.modules, command.module),
    "destroy_event": lambda session, command: (session.events, command.event),
    "destroy_tensor_map": lambda session, command: (session.tensor_maps, command.tensor_map),
    "destroy_graph": lambda session, command: (session.graphs, command.graph),
    "destroy_prepared": lambda session, command: (session.prepared, command.prepared),
}
"""The handle that each kind of command destroys. Free is not listed, because it destroys many handles; see
`HandleTable.pop_all`."""


def destroys(kind: str) -> bool:
    """True if commands of this kind destroy handles."""
    return kind == "free" or kind in DESTROYED


def record_refusal(session: DeviceSession, kind: str, command: Any, refusal: Refusal) -> None:
    """Records that a one-way command was refused on arrival.

    Each handle that the command would have created, and that does not exist yet, fails with this reason from now on.
    """
    created_by = CREATED.get(kind)
    if created_by is not None:
        table, handles = created_by(session, command)
        for handle in handles:
            table.mark_failed(handle, refusal)


def never_created(session: DeviceSession, kind: str, command: Any) -> bool:
    """Returns True if the handle that the command destroys was never created, which its client may not know.

    Removes the tombstone of the handle.
    """
    destroyed_by = DESTROYED.get(kind)
    if destroyed_by is None:
        return False
    table, handle = destroyed_by(session, command)
    return table.forget(handle)
