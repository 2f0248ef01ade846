"""Kernel output: collects the text that kernels have printed."""

from __future__ import annotations

import ctypes
from contextlib import suppress

from cupy_backends.cuda.api import driver, runtime
from cupy_backends.cuda.api.runtime import eventQuery, eventRecord

from hearthd.device.cuda.errors import CudaError, translated

_LIBC = ctypes.CDLL(None)

_PRINTER = b"""
.version 6.0
.target sm_50
.address_size 64
.extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 arguments);
.visible .entry printer(.param .u64 format)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [format];
    setp.eq.u64 %p1, %rd1, 0;
    @%p1 bra done;
    mov.u64 %rd2, 0;
    {
        .param .b64 param0;
        st.param.b64 [param0], %rd1;
        .param .b64 param1;
        st.param.b64 [param1], %rd2;
        .param .b32 result0;
        call.uni (result0), vprintf, (param0, param1);
        ld.param.b32 %r1, [result0];
    }
done:
    ret;
}
"""
"""A kernel that prints unless its argument is 0."""


def create_output_buffer() -> None:
    """Has the driver create the buffer that kernels print to, by launching a kernel that might print.

    If that fails, the first kernel that prints waits for running ones.
    """
    with suppress(*CudaError):
        function = driver.moduleGetFunction(driver.moduleLoadData(_PRINTER), "printer")
        argument = ctypes.c_uint64(0)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        driver.launchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, ctypes.addressof(arguments), 0)


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
