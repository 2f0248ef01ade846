"""Processes that end together with another one: the kernel kills them when the other end of a pipe closes.

Unlike `PR_SET_PDEATHSIG`, the lifeline depends on a chosen process rather than on the parent's thread, and it can kill
a whole process group. Like `PR_SET_PDEATHSIG`, it also works for a process that is stopped or stuck. Used for processes
that would otherwise survive without serving any client: a device process whose front has ended, a compile worker whose
device process has ended.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal

_F_SETSIG = 10
"""Constant of `fcntl`, which Python's module does not define."""


def die_with(lifeline: int, *, group: bool = False) -> bool:
    """Makes the kernel kill this process, or its process group, when the last write end of the pipe closes.

    Args:
        lifeline: The read end. The open file must not be shared with another process, because an open file has
            only one owner.
        group: True to kill the whole process group.

    Returns:
        False if the pipe had closed before: no signal will be sent, and the caller must exit by itself.

    Raises:
        OSError: The system does not support this.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp() if group else os.getpid())
    fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(lifeline, 0)
    return not poll.poll(0)
