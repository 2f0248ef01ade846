"""Orphans: processes that the front has not started itself, and inherits when their parent ends.

A compiler outlives a device process that is killed, and device processes outlive the forkserver: the front takes them
in (`PR_SET_CHILD_SUBREAPER`; in a container it may be process 1, without a parent), and they stay as zombies until
it has waited for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable, Collection, Iterator

_TICK = 2.0
"""Seconds between checks: uvloop keeps SIGCHLD for itself, and a zombie costs nothing but its number."""

_PR_SET_CHILD_SUBREAPER = 36


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
    """Waits for orphans as long as the block runs; `first`: whether this process inherits any (None: it does from now
    on). `ours` says which processes are waited for elsewhere. Inside the event loop."""
    if first is None:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    elif not first:
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
