"""Orphans: processes that the front did not start itself, and inherits when their parent ends.

A compiler outlives a device process that is killed, and device processes outlive the forkserver. The front adopts them
(`PR_SET_CHILD_SUBREAPER`; in a container it may be process 1, which inherits all orphans). They remain zombies until
the front has waited for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable, Collection, Iterator

_TICK = 2.0
"""Interval between checks, in seconds. uvloop reserves SIGCHLD, and a zombie uses only its pid."""

_PR_SET_CHILD_SUBREAPER = 36


def reap(excluded: Collection[int]) -> None:
    """Reaps every child that has ended, except for `excluded`, for which other code waits.

    If a child of `excluded` has ended, the system reports the remaining children only after it has been reaped, so they
    are reaped at a later call.
    """
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # there are no children
            return
        if ended is None or ended.si_pid in excluded:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, ended.si_pid, os.WEXITED | os.WNOHANG)


@contextlib.contextmanager
def reaping_orphans(excluded: Callable[[], Collection[int]], *, tick: float = _TICK) -> Iterator[None]:
    """Inherits orphans from now on, and reaps them while the block runs. Must be used inside the event loop.

    `excluded` returns the processes for which other code waits.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    async def poll() -> None:
        while True:
            await asyncio.sleep(tick)
            reap(excluded())

    polling = asyncio.create_task(poll(), name="orphans")
    try:
        yield
    finally:
        polling.cancel()
