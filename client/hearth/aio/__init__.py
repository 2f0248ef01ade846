"""Hearth for asyncio: the same client, with coroutines for the calls that wait.

>>> async def main():
...     async with hearth.aio.connect() as node:                 # or: node = await hearth.aio.connect()
...         gpu = node.device(0)
...         x = gpu.asarray(np.arange(4, dtype=np.float32))      # as in `hearth`: sent one way
...         double((1,), (4,), (x,))
...         print(await x.get())                                 # waits

**One client.** Classes here are siblings of those of `hearth`: `aio.DeviceArray` and `hearth.DeviceArray` are both
subclasses of `BaseArray`, and so on. Calls that do not wait are inherited from the base class and are the same for
both; calls that wait have the same name and are coroutines. A property that would send a request to the daemon is a
coroutine method (``await event.done()``, ``await f.num_regs()``, ``await mod.functions()``), and a block whose end
waits is entered by ``async with`` (`graph`, `prepared`, `profile`, `trace`, groups, the node). Both clients share the
code that sends a request and reads its answer (`hearth.session.reply.PendingResult`); only the waiting is implemented
in this package.

**Waiting takes no thread.** An answer completes a future of the event loop. The thread that receives the session's
answers, which exists anyway, sets the future, so thousands of answers may be awaited together. Threads are used only
for: connecting, attaching and closing; calls about the node (`describe`, `status`, `publish`, `attach`, groups over
daemons); arrays above the inline limit (1 MiB; for reads 512 KiB, after some reads of that size); and dispatches with
such arrays. On the daemon's host such arrays are transferred through shared memory: a thread sends the device the
location of the bytes, and copies them, and no thread waits for the transfer. On other hosts a thread carries out the
whole transfer. The threads are daemon threads, at most eighteen for each node (`hearth.aio.event_loop`), started on
demand and ended after being idle for 2 s.

**No call blocks the event loop.** Plain calls that would wait in a thread of the other client do not wait here.
Commands may be submitted before the device is attached. A large array is copied when the call returns, and is
transferred in the background. A full queue accepts four times the amount that it accepts from a thread, and then raises
`QuotaExceededError` (QUEUE_FULL). On the daemon's host, an array in pinned memory (`hearth.empty_pinned`) is not
copied: the device reads it in the order of the stream, and it must stay unchanged until the stream has been
synchronized. The same applies to an array in this process's own GPU memory (CuPy, PyTorch), which a thread copies
through the host. A program that submits work without ever waiting for a result should await ``gpu.ready()`` from time
to time, like the `drain` of a stream writer. After a `DeviceLostError` a plain call succeeds immediately, because the
device is attached again in the background; but a plain call that uses a durable array raises `UnavailableError`, which
is retryable, until the array is restored: ``await gpu.ready()`` waits for it, and so do the calls that are awaited.

**Cancelling** an await, for example by `asyncio.timeout`, leaves the session as it was: the work continues, its answer
is dropped, and earlier failures are raised by the next `synchronize`, `get`, `flush` or end of a profile. After the
await has ended, an array passed as `out` is not written to and the inputs of a dispatch are not read; if such an array
is being copied at the moment of the cancellation, the await ends after that copy. `publish` and other calls about the
node may take effect although they are cancelled, once they have started.

A node belongs to the event loop in which it was connected; awaiting its calls in another loop is an error
(`UnsupportedError`). Plain calls may come from any thread; in a thread without an event loop they block like those of
`hearth`. Text that kernels print is written by the event loop.
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
