"""CUDA streams, events, and signals to the host.

Events are pooled, because creating one costs several times as much as recording it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property

from cuda.bindings import driver
from cupy_backends.cuda.api import runtime
from cupy_backends.cuda.api.runtime import eventQuery, eventRecord, streamWaitEvent

from hearth_proto.reasons import Refusal
from hearthd.device.cuda.errors import NOT_READY, CudaError, checked, raise_status, translate, translated

SIGNALS = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
"""Attribute of a device whose streams can write 64-bit values to memory, and wait for them there."""


class Stream:
    """A non-blocking CUDA stream.

    `CudaStreams.destroy` deletes `pointer`, so that a later use raises AttributeError instead of submitting work to the
    legacy default stream.
    """

    __slots__ = ("pointer",)

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer


class Event:
    """A CUDA event lent from the pool; `pointer` is 0 after its release."""

    __slots__ = ("pointer", "timing")

    def __init__(self, pointer: int, timing: bool) -> None:
        self.pointer = pointer
        self.timing = timing


class CudaStreams:
    """Creates the device's streams, and records events on them.

    Every client operation calls `record`, `wait` and `done`.
    """

    def __init__(self) -> None:
        self._streams: set[Stream] = set()
        self._events: list[int] = []
        """Unused events without timing."""
        self._timers: list[int] = []
        """Unused events with timing."""

    def create(self, priority: int = 0) -> Stream:
        """Creates a stream. The driver clamps `priority` to the device's range; lower values are more urgent."""
        with translated("creating a stream"):
            stream = Stream(runtime.streamCreateWithPriority(runtime.streamNonBlocking, priority))
        self._streams.add(stream)
        return stream

    def destroy(self, stream: Stream) -> None:
        """Destroys the stream; the driver completes submitted work first. Further calls have no effect."""
        if stream not in self._streams:
            return
        self._streams.discard(stream)
        pointer = stream.pointer
        del stream.pointer
        with translated("destroying a stream"):
            runtime.streamDestroy(pointer)

    def record(self, stream: Stream, *, timing: bool = False) -> Event:
        """Records a new event, or a released one of the same kind, with or without timing."""
        free = self._timers if timing else self._events
        try:
            pointer = (
                free.pop()
                if free
                else runtime.eventCreateWithFlags(runtime.eventDefault if timing else runtime.eventDisableTiming)
            )
            eventRecord(pointer, stream.pointer)
        except CudaError as error:
            raise translate(error, "recording an event") from error
        return Event(pointer, timing)

    def wait(self, stream: Stream, event: Event) -> None:
        try:
            streamWaitEvent(stream.pointer, event.pointer)
        except CudaError as error:
            raise translate(error, "making a stream wait for an event") from error

    def done(self, event: Event) -> bool:
        status: int = eventQuery(event.pointer)
        if status == 0:
            return True
        if status != NOT_READY:
            raise_status(status, "waiting for an event")
        return False

    def elapsed_ns(self, start: Event, end: Event) -> int:
        """Returns the time between two events. CUDA's resolution is about 0.5 us (cudaEventElapsedTime)."""
        try:
            milliseconds: float = runtime.eventElapsedTime(start.pointer, end.pointer)
        except CudaError as error:
            raise translate(error, "measuring the time between two events") from error
        return round(milliseconds * 1e6)

    def release_event(self, event: Event) -> None:
        """Returns the event to the pool.

        It may still be pending, and streams may still wait for it, because recording it again does not change what they
        wait for. Further calls have no effect.
        """
        if event.pointer:
            (self._timers if event.timing else self._events).append(event.pointer)
            event.pointer = 0

    def close(self) -> None:
        """Destroys all streams and the unused events. Never raises."""
        for stream in list(self._streams):
            with suppress(Exception):
                self.destroy(stream)
        for pointer in (*self._events, *self._timers):
            with suppress(Exception):
                runtime.eventDestroy(pointer)
        self._streams.clear()
        self._events.clear()
        self._timers.clear()


class CaptureStreams:
    """Streams that are used only for captures, so that no other work can invalidate one. Kept for later captures."""

    def __init__(self, streams: CudaStreams) -> None:
        self._streams = streams
        self._kept: list[Stream] = []

    def first(self, count: int) -> list[Stream]:
        """Returns the first `count` streams, each of which is created at its first use."""
        while len(self._kept) < count:
            self._kept.append(self._streams.create())
        return self._kept[:count]

    def drop(self, keep: int) -> None:
        """Destroys all streams except the first `keep`. After a failed capture, they may still be part of it."""
        dropped, self._kept[keep:] = self._kept[keep:], []
        for stream in dropped:
            with suppress(Refusal):
                self._streams.destroy(stream)


class HostSignals:
    """Writes signals: 8-byte values in page-locked host memory, written after the preceding work of a stream."""

    @cached_property
    def _supported(self) -> bool:
        """True if the device's streams can write 64-bit values. Raises CudaError."""
        (device,) = checked(driver.cuCtxGetDevice())
        (supported,) = checked(driver.cuDeviceGetAttribute(SIGNALS, device))
        return bool(supported)

    def address(self, address: int) -> int:
        """Returns the device address of page-locked host memory; 0 if the device cannot write signals."""
        with translated("looking for the address of signals"):
            if not self._supported:
                return 0
            (pointer,) = checked(driver.cuMemHostGetDevicePointer(address, 0))
        return int(pointer)

    def write(self, address: int, value: int, stream: Stream) -> None:
        """Enqueues a write of 8 bytes at `address`, a result of `address()`."""
        try:
            checked(driver.cuStreamWriteValue64(stream.pointer, address, value, 0))  # flags 0: after a memory barrier
        except CudaError as error:
            raise translate(error, "writing a signal") from error
