"""CUDA streams and events. Events are pooled: creating one costs several times what recording it does."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress

from cupy_backends.cuda.api import runtime
from cupy_backends.cuda.api.runtime import eventQuery, eventRecord, streamWaitEvent

from hearthd.device.cuda.errors import NOT_READY, CudaError, raise_status, translate

_LIBC = ctypes.CDLL(None)


class Stream:
    """A non-blocking CUDA stream. `pointer` goes with it: a use after `destroy_stream` is an AttributeError rather than
    work on the legacy default stream."""

    __slots__ = ("pointer",)

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer


class Event:
    """A CUDA event on loan from the pool; `pointer` is 0 once it is released."""

    __slots__ = ("pointer", "timing")

    def __init__(self, pointer: int, timing: bool) -> None:
        self.pointer = pointer
        self.timing = timing


class StreamOperations:
    """The part of CudaServer that orders work. `record`, `wait` and `done` are on every client's path."""

    def __init__(self) -> None:
        self._wake: Callable[[], None] = lambda: None
        self._streams: set[Stream] = set()
        self._events: list[int] = []  # free ones without timing
        self._timers: list[int] = []  # free ones with timing
        self._flush_stream = 0
        self._flush_event = 0

    def on_progress(self, wake: Callable[[], None] | None) -> bool:
        """CUDA tells of an event only to a thread that waits, or by a host function that holds the stream up."""
        self._wake = wake if wake is not None else lambda: None
        return False

    def wake(self) -> None:
        """Makes the device-handle thread look again. Any thread."""
        self._wake()

    def create_stream(self, priority: int = 0) -> Stream:
        """The driver clamps `priority` to what the device has; lower is more urgent."""
        try:
            stream = Stream(runtime.streamCreateWithPriority(runtime.streamNonBlocking, priority))
        except CudaError as error:
            raise translate(error, "creating a stream") from error
        self._streams.add(stream)
        return stream

    def destroy_stream(self, stream: Stream) -> None:
        """The driver keeps the stream until what it has been given is done. A second time does nothing."""
        if stream not in self._streams:
            return
        self._streams.discard(stream)
        pointer = stream.pointer
        del stream.pointer
        try:
            runtime.streamDestroy(pointer)
        except CudaError as error:
            raise translate(error, "destroying a stream") from error

    def record(self, stream: Stream, *, timing: bool = False) -> Event:
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
        """CUDA measures with a resolution of about 0.5 us (cudaEventElapsedTime)."""
        try:
            milliseconds: float = runtime.eventElapsedTime(start.pointer, end.pointer)
        except CudaError as error:
            raise translate(error, "measuring the time between two events") from error
        return round(milliseconds * 1e6)

    def release_event(self, event: Event) -> None:
        """The event may still be pending, and streams may still wait for it: a new record does not change what they
        wait for. A second time does nothing."""
        if event.pointer:
            (self._timers if event.timing else self._events).append(event.pointer)
            event.pointer = 0

    def flush_output(self) -> None:
        """The driver writes what kernels printed to `stdout` when it is asked to synchronise with something, not when
        an event is queried (CUDA C++ Programming Guide, "Formatted Output"). What it is asked to wait for here has been
        done for long: it writes, and does not wait.
        """
        try:
            if not self._flush_event:
                self._flush_stream = runtime.streamCreateWithFlags(runtime.streamNonBlocking)
                self._flush_event = runtime.eventCreateWithFlags(runtime.eventDisableTiming)
                eventRecord(self._flush_event, self._flush_stream)
            if eventQuery(self._flush_event) != 0:
                return  # it is recorded on an idle stream: the next time it is done
            runtime.eventSynchronize(self._flush_event)
            runtime.streamSynchronize(self._flush_stream)
        except CudaError as error:
            raise translate(error, "collecting what kernels printed") from error
        _LIBC.fflush(None)  # it is a pipe, so that the C library keeps what is written to it

    def close_streams(self) -> None:
        """Destroys all streams and the events at hand. Never raises."""
        for stream in list(self._streams):
            with suppress(Exception):
                self.destroy_stream(stream)
        for pointer in (*self._events, *self._timers):
            with suppress(Exception):
                runtime.eventDestroy(pointer)
        self._streams.clear()
        self._events.clear()
        self._timers.clear()
