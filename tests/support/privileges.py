"""Root without the capabilities that bypass file permissions: files without permission remain unusable in a test run as
root.

Such a process keeps its user, and can therefore read a clone that no other user may enter; a process that becomes
another user (`setuid`) could import nothing from it. Run as a program, this module drops capabilities, given by number,
from those that a program may gain, and executes the rest of its arguments.
"""

from __future__ import annotations

import ctypes
import os
import sys

_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2


def obeying(*command: str, reads: bool = False) -> list[str]:
    """Returns a command line that runs `command` such that file permissions apply to it as to an ordinary user.

    Args:
        reads: True if it may read files and search directories as root does; then only writing is restricted.
    """
    if os.geteuid() != 0:
        return list(command)
    dropped = (_CAP_DAC_OVERRIDE,) if reads else (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH)
    return [sys.executable, __file__, ",".join(map(str, dropped)), *command]


def main(numbers: str, *command: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for number in map(int, numbers.split(",")):
        if libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "PR_CAPBSET_DROP")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
