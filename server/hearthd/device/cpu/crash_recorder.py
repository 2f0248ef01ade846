"""Crash record of this process: the memory in which the runtime records what its kernels are doing."""

from __future__ import annotations

import ctypes
import mmap
import os

from hearthd.shared import crash_record


class CrashRecorder:
    """Crash record of one process. Records nothing until a file is given and a kernel is loaded."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._runtime: ctypes.CDLL | None = None
        self._output_pipes: tuple[int, int] | None = None

    def output_pipes(self) -> tuple[int, int]:
        """Returns the ends of two pipes for the reader of standard output.

        A byte arrives on the first before a kernel's fault ends the process; the fault handler waits, for a limited
        time, until a byte is written to the second.
        """
        request_reader, request_writer = os.pipe2(os.O_CLOEXEC)
        reply_reader, reply_writer = os.pipe2(os.O_CLOEXEC)
        self._output_pipes = request_writer, reply_reader
        if self._runtime is not None:
            self._runtime.hearth_output(*self._output_pipes)
        return request_reader, reply_writer

    def start(self, file: int) -> None:
        """Starts to write to this file, which the front created with `crash_record.make`; closes the descriptor.

        Raises OSError or ValueError if the file cannot be mapped.
        """
        try:
            memory = mmap.mmap(file, crash_record.SIZE)
        finally:
            os.close(file)
        if self._memory is None:
            self._memory = memory
            self._start_recording()

    def set_runtime(self, runtime: ctypes.CDLL) -> None:
        """Sets the library that launches kernels. Only the first call has an effect."""
        if self._runtime is None:
            self._runtime = runtime
            if self._output_pipes is not None:
                runtime.hearth_output(*self._output_pipes)
            self._start_recording()

    def set_session(self, session: str) -> None:
        """Attributes all later launches of the calling thread to this session, given by its id."""
        if self._memory is not None and self._runtime is not None:
            self._runtime.hearth_whose(session.encode())

    def _start_recording(self) -> None:
        if self._memory is not None and self._runtime is not None:
            self._runtime.hearth_record(_address(self._memory), crash_record.SLOTS)


def _address(memory: mmap.mmap) -> int:
    """Returns the address of a mapping that is never released.

    Threads write to it until they end, which is after all Python objects are gone.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
