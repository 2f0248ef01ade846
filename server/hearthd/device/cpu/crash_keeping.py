"""Keeps the crash record of this process: the memory in which the runtime writes down what kernels are doing."""

from __future__ import annotations

import ctypes
import mmap
import os

from hearthd.shared import crash_record


class CrashKeeping:
    """Crash record of one process. Without a file, or before a kernel is loaded, it records nothing."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._runtime: ctypes.CDLL | None = None
        self._begun = False
        self._output: tuple[int, int] | None = None

    def output_pipes(self) -> tuple[int, int]:
        """Pipe ends for the reader of standard output.

        A byte comes on the first before a kernel's fault ends the process; the fault waits, for a limited time, until
        a byte is written to the second.
        """
        ask, asking = os.pipe2(os.O_CLOEXEC)
        answer, answering = os.pipe2(os.O_CLOEXEC)
        self._output = asking, answer
        if self._runtime is not None:
            self._runtime.hearth_output(*self._output)
        return ask, answering

    def take(self, file: int) -> None:
        """Writes to this file, a `crash_record.make` of the front, from now on; it is closed here. Raises OSError or
        ValueError for one that cannot be mapped."""
        try:
            memory = mmap.mmap(file, crash_record.SIZE)
        finally:
            os.close(file)
        if self._memory is None:
            self._memory = memory
            self._begin()

    def know(self, runtime: ctypes.CDLL) -> None:
        """Kernels are launched by this library."""
        if self._runtime is None:
            self._runtime = runtime
            if self._output is not None:
                runtime.hearth_output(*self._output)
            self._begin()

    def whose(self, session: str) -> None:
        """Kernels that this thread launches from now on are of this session, by id."""
        if self._begun and self._runtime is not None:
            self._runtime.hearth_whose(session.encode())

    def _begin(self) -> None:
        if self._memory is not None and self._runtime is not None:
            self._runtime.hearth_record(_address(self._memory), crash_record.SLOTS)
            self._begun = True


def _address(memory: mmap.mmap) -> int:
    """Returns the address of a mapping that stays for the life of the process: threads write there to their end, which
    is after that of every Python object."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
