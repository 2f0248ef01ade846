"""Kernel output: collects the text that kernels have printed."""

from __future__ import annotations

import ctypes

from cupy_backends.cuda.api import runtime
from cupy_backends.cuda.api.runtime import eventQuery, eventRecord

from hearthd.device.cuda.errors import translated

_LIBC = ctypes.CDLL(None)


class KernelOutput:
    """Makes the driver write the output of completed kernels to the standard output of the process.

    The driver writes at a synchronization, not when an event is queried (CUDA C++ Programming Guide, "Formatted
    Output"). This class synchronizes with an event and a stream that have been idle since their creation, so the driver
    writes and does not wait.
    """

    def __init__(self) -> None:
        self._stream = 0
        self._event = 0

    def flush(self) -> None:
        """Writes the output of completed kernels. Does not wait for running ones."""
        with translated("collecting what kernels printed"):
            if not self._event:
                self._stream = runtime.streamCreateWithFlags(runtime.streamNonBlocking)
                self._event = runtime.eventCreateWithFlags(runtime.eventDisableTiming)
                eventRecord(self._event, self._stream)
            if eventQuery(self._event) != 0:
                return  # just recorded on an idle stream: complete by the next flush
            runtime.eventSynchronize(self._event)
            runtime.streamSynchronize(self._stream)
        _LIBC.fflush(None)  # standard output is a pipe, which the C library buffers
