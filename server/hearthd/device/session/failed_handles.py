"""Handles whose creation was refused: what is asked of them later is refused for the same reason, and not because
nobody knows them.

Who does not wait for what it creates goes on using a handle that was never made. What fails when it runs (a compile, an
allocation) leaves an object behind that says so; what is refused before there is one is noted here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hearth_proto.reasons import Refusal
from hearthd.device.session.handle_table import HandleTable
from hearthd.device.session.session import DeviceSession

Made = Callable[[DeviceSession, Any], tuple[HandleTable[Any], Iterable[int]]]
Unmade = Callable[[DeviceSession, Any], tuple[HandleTable[Any], int]]

MADE: dict[str, Made] = {
    "create_stream": lambda session, command: (session.streams, (command.stream,)),
    "allocate": lambda session, command: (
        session.buffers,
        [part.buffer for part in command.parts] or (command.buffer,),
    ),
    "load_module": lambda session, command: (session.modules, (command.module,)),
    "get_function": lambda session, command: (session.functions, (command.function,)),
    "get_global": lambda session, command: (session.buffers, (command.buffer,)),
    "record_event": lambda session, command: (session.events, (command.event,)),
    "create_tensor_map": lambda session, command: (session.tensor_maps, (command.tensor_map,)),
    "begin_capture": lambda session, command: (session.graphs, (command.graph,)),
    "prepare": lambda session, command: (session.prepared, (command.prepared,)),
    "start_profile": lambda session, command: (session.profiles, (command.profile,)),
}
"""What each kind of command would have made."""

UNMADE: dict[str, Unmade] = {
    "destroy_stream": lambda session, command: (session.streams, command.stream),
    "unload_module": lambda session, command: (session.modules, command.module),
    "destroy_event": lambda session, command: (session.events, command.event),
    "destroy_tensor_map": lambda session, command: (session.tensor_maps, command.tensor_map),
    "destroy_graph": lambda session, command: (session.graphs, command.graph),
    "destroy_prepared": lambda session, command: (session.prepared, command.prepared),
}
"""What each kind of command ends. Free, which ends many, does so itself: see `HandleTable.pop_all`."""


def refused(session: DeviceSession, kind: str, command: Any, refusal: Refusal) -> None:
    """A one-way command was refused when it arrived: what it would have made says why from now on, where it is not
    there already."""
    made = MADE.get(kind)
    if made is not None:
        table, handles = made(session, command)
        for handle in handles:
            table.never_made(handle, refusal)


def never_was(session: DeviceSession, kind: str, command: Any) -> bool:
    """Whether what the command is to end was never made, which its client may not know: there is nothing left of it
    then."""
    unmade = UNMADE.get(kind)
    if unmade is None:
        return False
    table, handle = unmade(session, command)
    return table.forget(handle)
