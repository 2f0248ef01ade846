"""Processes that the front inherits when it is the first of its namespace, as in a container: nobody else waits.

The forkserver forks a device process through a child of its own that ends, and a compiler outlives a device process
that is killed: such orphans belong to process 1, and stay as zombies until it has waited for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Iterator

_TICK = 2.0
"""Seconds between looks: uvloop keeps SIGCHLD for itself, and a zombie costs nothing but its number."""


def reap(ours: Collection[int]) -> None:
    """Waits for every child that has ended, but for `ours`, which others wait for. What ended after one of those is
    left for another time: it is not seen before that has been waited for."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # there are no children
            return
        if ended is None or ended.si_pid in ours:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, ended.si_pid, os.WEXITED | os.WNOHANG)


@contextlib.contextmanager
def adopted(ours: Callable[[], Collection[int]], *, first: bool | None = None, tick: float = _TICK) -> Iterator[None]:
    """Waits for orphans as long as the block runs; `first`: whether this process inherits any (None: where it is
    process 1). `ours` says which processes it started itself. Inside the event loop."""
    if not (os.getpid() == 1 if first is None else first):
        yield
        return

    async def look() -> None:
        while True:
            await asyncio.sleep(tick)
            reap(ours())

    looking = asyncio.create_task(look(), name="orphans")
    try:
        yield
    finally:
        looking.cancel()
