"""Processes that end when another one does: the kernel kills them when the other end of a pipe closes.

Unlike `PR_SET_PDEATHSIG`, it follows one chosen process and not the thread that is the parent, and it can take a whole
process group; like that, it holds for a process that is stopped or stuck. Used where the survivor would serve no client
any more: a device process whose front is gone, a compile worker whose device process is.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal

_F_SETSIG = 10
"""`fcntl`'s; the module does not name it."""


def die_with(lifeline: int, *, group: bool = False) -> bool:
    """Has the kernel kill this process, or its process group, when the last write end of the pipe closes.

    Args:
        lifeline: the read end. The open file must be this process's alone: a file shared with another process has one
            owner for both.
        group: the whole process group.

    Returns:
        False where the pipe had closed before: nothing will happen any more, the caller has to end by itself.

    Raises:
        OSError: the system does not offer this.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp() if group else os.getpid())
    fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(lifeline, 0)
    return not poll.poll(0)
