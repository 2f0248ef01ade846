"""The superuser without the capability to pass over permissions: what may not be used stays so in a test run as root.

Such a process keeps its user, and with it the files of a clone that no other user may enter; one that becomes another
user (`setuid`) can import nothing from there. Run as a program, this module drops capabilities, given by number, from
those that a program may gain, and executes the rest of its arguments.
"""

from __future__ import annotations

import ctypes
import os
import sys

_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2


def obeying(*command: str, reads: bool = False) -> list[str]:
    """A command line that runs `command` so that permissions bind it as they bind an ordinary user.

    Args:
        reads: Whether it may read, and search directories, as the superuser does; then only writing is bound.
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
