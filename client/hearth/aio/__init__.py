"""Hearth for asyncio: the same client, whose waits are awaited.

>>> async def main():
...     async with hearth.aio.connect() as node:                 # or: node = await hearth.aio.connect()
...         gpu = node.device(0)
...         x = gpu.asarray(np.arange(4, dtype=np.float32))      # as in `hearth`: sent one way
...         double((1,), (4,), (x,))
...         print(await x.get())                                 # waits

**One client.** Classes here are siblings of those of `hearth`: `aio.DeviceArray` and `hearth.DeviceArray` are both
a `BaseArray`, and so on. Calls that do not wait are inherited from it, the same for both; those that wait have the same
name and are coroutines. A property that would
ask the daemon is a coroutine method (``await event.done()``, ``await f.num_regs()``, ``await mod.functions()``), and a
block whose end waits is entered by ``async with`` (`graph`, `prepared`, `profile`, `trace`, groups, the node). Each
request is sent, and its answer read, by code that both clients share (`hearth.session.reply.PendingResult`); only the
wait between is this package's.

**Waiting takes no thread.** An answer completes a future of the loop, which the receiving thread sets: the session
has that thread anyway. So thousands may be awaited at once. Threads are used only where they are needed: to connect,
attach and close; for calls about the node (`describe`, `status`, `publish`, `attach`, groups over daemons); arrays
above the inline limit (1 MiB; reads of 512 KiB on, once there have been some), and dispatches with such. On the
daemon's host those go by shared memory: a thread tells the device where they are, and copies them, and none waits for
it. Elsewhere a thread carries each to its end. They are daemon threads, at most eighteen for a node
(`hearth.aio.event_loop`), made when they are needed and gone 2 s later.

**Nothing holds the loop up.** Where a thread of the other client would wait in a plain call, here it does not: commands
may be given before the device has been attached to; a large array is copied when the call returns, and travels in the
background; a full queue takes four times what it takes of a thread, and then raises `QuotaExceededError` (QUEUE_FULL).
One in pinned memory (`hearth.empty_pinned`) is not copied on the daemon's host: the device reads it in the order of the
stream, and it is to stay as it is until that was synchronized with. So is one in this process's own GPU memory (CuPy,
PyTorch), which a thread copies by way of the host. A program that submits without ever waiting for a result awaits
``gpu.ready()`` now and then, as one awaits a stream writer's `drain`. After a `DeviceLostError` a plain call works at
once, for the device is attached again behind it; but where durable arrays come back it raises `UnavailableError` until
``await gpu.ready()``.

**Cancelling** an await, by `asyncio.timeout` for one, leaves the session as it was: the work continues, its answer is
dropped, and what failed before it is raised by the next `synchronize`, `get`, `flush` or end of a profile. Nothing
writes to an array passed as `out`, or reads a dispatch's inputs, once the await has ended: if one is being copied at
that moment, it ends with the copy. `publish` and other calls about the node, once begun, may be carried out all the
same.

A node belongs to the event loop that it was connected in; to await it in another one is an error (`UnsupportedError`).
Plain calls may come from any thread, and wait there as those of `hearth` do. What kernels print is written by the loop.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hearth.aio.array import DeviceArray as DeviceArray
    from hearth.aio.device import Device as Device
    from hearth.aio.dispatch import PendingDispatch as PendingDispatch
    from hearth.aio.graph import Graph as Graph
    from hearth.aio.graph import Prepared as Prepared
    from hearth.aio.group import Group as Group
    from hearth.aio.module import Function as Function
    from hearth.aio.module import RawModule as RawModule
    from hearth.aio.node import Node as Node
    from hearth.aio.node import connect as connect
    from hearth.aio.profile import Profile as Profile
    from hearth.aio.profile import Trace as Trace
    from hearth.aio.stream import Event as Event
    from hearth.aio.stream import Stream as Stream
    from hearth.aio.stream import get_elapsed_time as get_elapsed_time

_HOMES = {
    "array": ("DeviceArray",),
    "device": ("Device",),
    "group": ("Group",),
    "module": ("Function", "RawModule"),
    "node": ("Node", "connect"),
    "dispatch": ("PendingDispatch",),
    "profile": ("Profile", "Trace"),
    "graph": ("Graph", "Prepared"),
    "stream": ("Event", "Stream", "get_elapsed_time"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Device",
    "DeviceArray",
    "Event",
    "Function",
    "Graph",
    "Group",
    "Node",
    "PendingDispatch",
    "Prepared",
    "Profile",
    "RawModule",
    "Stream",
    "Trace",
    "connect",
    "get_elapsed_time",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'hearth.aio' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"hearth.aio.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
