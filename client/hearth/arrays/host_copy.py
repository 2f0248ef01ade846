"""An array's contents from and to host memory, as NumPy arrays.

What is copied to and from pinned memory is remembered: to find out anew where it lies, and that it can be copied as it
is, takes longer than the rest of what the client has to do for it.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from hearth import dtypes, progress, stream, telemetry
from hearth import lazy_numpy as np
from hearth.arrays.views import Views
from hearth.errors import ArgumentError, DtypeError
from hearth.session.late_errors import NO_STREAM
from hearth.transfer import plan, router
from hearth.transport.spin_wait import DOWN, UP

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.transfer.pinned_copy import PinnedCopy

_PAIRS = 8
"""Host arrays that an array remembers, and ways and streams of each; with more it begins anew."""


class _Pair(NamedTuple):
    """A host array and what its memory belongs to, by weak references; how it is copied each way, if it was."""

    host: Callable[[], Any]
    base: Callable[[], Any]
    copies: dict[tuple[int, int | None], PinnedCopy]
    """By way and the id of the stream."""


class HostCopies(Views):
    """How a `DeviceArray` is read and written by the host."""

    __slots__ = ("_connection", "_nbytes", "_pairs")

    _connection: Connection
    _nbytes: int
    _pairs: dict[int, _Pair] | None
    """By the id of the host array; None as long as there are none."""

    @telemetry.traced("hearth.get", telemetry.of_array)
    def get(
        self,
        out: np.ndarray[Any, Any] | None = None,
        stream: stream.Stream | None = None,
        *,
        blocking: bool = True,
        timeout: float | None = None,
        progress: bool | progress.Progress | None = None,
    ) -> np.ndarray[Any, Any]:
        """A copy in host memory, after the work before it on `stream` and on the array; in `out` if given.

        ``blocking=False``, with an `out` that lies in pinned memory (`hearth.empty_pinned`) and can take the bytes as
        they are (C-contiguous): returns at once; `out` is filled in the order of the stream, and is not to be looked at
        before that was synchronized with, which raises what failed. Where that cannot be (ordinary memory, a device of
        another host) it waits all the same.

        `timeout` in seconds. `progress`: True for a bar on a terminal or in a notebook, or `f(done, total)` in bytes.
        Raises what failed on the stream, `BufferLostError`, `DeviceLostError`, `TimeoutError`.
        """
        if out is not None and self._pairs is not None and progress is None:
            copy = self._again(out, DOWN, stream, blocking)
            if copy is not None and self._get_again(copy, out, timeout, blocking):
                return out
        self._connection.raise_deferred(NO_STREAM)  # which stream it is, is known when it can be used
        attachment = self._usable()
        host, into = self._places(out)
        if self._nbytes:
            self._read(attachment, stream, into, timeout, progress, blocking or into is not host)
        if into is not host:
            host[...] = into
        return host

    @telemetry.traced("hearth.get", telemetry.of_array)
    def readinto(
        self,
        buffer: Any,
        stream: stream.Stream | None = None,
        *,
        timeout: float | None = None,
        progress: bool | progress.Progress | None = None,
    ) -> int:
        """Its bytes, in C order, into a writable buffer of that size: a bytearray, `array.array`, memoryview, mmap or
        an array of NumPy's, whatever the type of its elements. Returns how many bytes that are, as `io` has it.

        Waits and raises as `get` does; also `DtypeError` for what is no buffer, `ArgumentError` for one that is
        read-only, not contiguous, or of another size.
        """
        data = dtypes.writable(buffer, self._nbytes)
        self._connection.raise_deferred(NO_STREAM)
        attachment = self._usable()
        if self._nbytes:
            self._fetch(attachment, stream, data, timeout, progress)
        return self._nbytes

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("an array on a device cannot be seen by the host without a copy")
        host = self.get()
        return host if dtype is None else host.astype(dtype, copy=False)

    def set(
        self,
        a: Any,
        stream: stream.Stream | None = None,
        *,
        blocking: bool = False,
        progress: bool | progress.Progress | None = None,
    ) -> None:
        """Overwrites it with a host array of the same shape and dtype.

        An ordinary array may be changed once this returns. One in pinned memory (`hearth.empty_pinned`) is read in the
        order of the stream: it is to stay as it is until that was synchronized with, unless ``blocking=True``, which
        waits until it has been read.

        Raises `ArgumentError` and `DtypeError` where they differ.
        """
        if self._pairs is not None and progress is None and not telemetry.made():
            copy = self._again(a, UP, stream, blocking)
            if copy is not None:
                if not blocking:
                    copy.begin(a)
                    return
                if copy.run(a):
                    return
        if not np.here():
            found = dtypes.host(a)
            if found is not None and found.element is self._dtype and found.shape == self._shape:
                self._write_bytes(found.data, stream, progress, blocking)
                return
        dtype = self.dtype
        host = a if isinstance(a, np.ndarray) else np.asarray(a, dtype)
        if host.dtype is not dtype and host.dtype.newbyteorder("=") != dtype:
            raise DtypeError(
                f"an array of {host.dtype} cannot be set into one of {dtype}.",
                reason="INVALID_ARGUMENT",
                fix=f"use a.astype({str(dtype)!r}).",
            )
        if host.shape != self._shape:
            raise ArgumentError(
                f"an array of shape {host.shape} cannot be set into one of shape {self._shape}.",
                reason="INVALID_ARGUMENT",
                fix="slice or reshape one of them, or use np.broadcast_to(a, shape).",
            )
        self._write(host, stream, progress, blocking)

    # ---- the same once more ----

    def _again(self, host: Any, way: int, on: stream.Stream | None, blocking: bool) -> PinnedCopy | None:
        """What copies the array as it was copied before, where nothing has changed that matters."""
        pair = None if self._pairs is None else self._pairs.get(id(host))
        if (
            pair is None or pair.host() is not host or pair.base() is not host.base
            or host.shape != self._shape or host.dtype is not self._dtype
        ):  # fmt: skip
            return None
        flags = host.flags
        if not flags.c_contiguous or (way == DOWN and not flags.writeable):
            return None
        if on is None:
            on = stream.current(self._connection)
        copy = pair.copies.get((way, None if on is None else id(on)))
        if copy is None or copy.again(self._memory, on, blocking):
            return copy
        self._pairs = None  # what was remembered may keep what has ended
        return None

    def _get_again(self, copy: PinnedCopy, out: np.ndarray[Any, Any], timeout: float | None, blocking: bool) -> bool:
        if not blocking:
            copy.begin(out)
        elif not copy.run(out, timeout):
            return False
        if self._connection._deferred:  # as in `_fetch`
            self._connection.raise_deferred(copy.stream, self._memory.handle)
        return True

    def _remember(self, host: np.ndarray[Any, Any], way: int, given: stream.Stream | None, copy: PinnedCopy) -> None:
        """It was copied just as it is."""
        pairs = self._pairs
        if type(host) is not np.ndarray or host.dtype is not self._dtype or host.base is None:
            return
        if pairs is None or len(pairs) >= _PAIRS:
            self._pairs = pairs = {}
        pair = pairs.get(id(host))
        if pair is None or pair.host() is not host or pair.base() is not host.base:
            try:
                pairs[id(host)] = pair = _Pair(weakref.ref(host), weakref.ref(host.base), {})
            except TypeError:  # what has no weak references
                return
        if len(pair.copies) >= _PAIRS:
            pair.copies.clear()
        on = given if given is not None else stream.current(self._connection)
        pair.copies[way, None if on is None else id(on)] = copy

    # ---- inside ----

    def _usable(self) -> Attachment:
        return self._connection.check(self._memory, self)

    def _stream(self, given: stream.Stream | None, attachment: Attachment) -> int:
        return stream.resolve(given, self._connection, attachment)

    def _records(self, given: stream.Stream | None) -> bool:
        """Whether the stream is being recorded: a copy from or to the host is refused there, which is told at once
        where nothing is shared."""
        on = given if given is not None else stream.current(self._connection)
        return on is not None and on.records

    @telemetry.traced("hearth.upload", telemetry.of_upload)
    def _write(
        self,
        host: np.ndarray[Any, Any],
        stream: stream.Stream | None,
        show: bool | progress.Progress | None,
        blocking: bool = False,
    ) -> None:
        attachment = self._usable()
        given, host = host, np.ascontiguousarray(host, self.dtype)
        part = self._part(attachment, stream)
        report = progress.reporter(show, "upload")
        copy = self._send(attachment, part, plan.host_bytes(host), report, blocking, not self._records(stream))
        if copy is not None and host is given:
            self._remember(host, UP, stream, copy)

    @telemetry.traced("hearth.upload", telemetry.of_upload)
    def _write_bytes(
        self,
        data: memoryview,
        stream: stream.Stream | None,
        show: bool | progress.Progress | None,
        blocking: bool = False,
    ) -> None:
        """All of it, from a buffer that is no array of NumPy's."""
        attachment = self._usable()
        part = self._part(attachment, stream)
        self._send(attachment, part, data, progress.reporter(show, "upload"), blocking, not self._records(stream))

    def _send(
        self,
        attachment: Attachment,
        part: plan.Part,
        data: memoryview,
        report: progress.Progress | None,
        blocking: bool,
        shared: bool,
    ) -> PinnedCopy | None:
        return router.write(self._connection, attachment, part, data, report, blocking=blocking, shared=shared)

    def _part(self, attachment: Attachment, on: stream.Stream | None) -> plan.Part:
        """All of it, in the order of a stream."""
        return plan.Part(self._stream(on, attachment), self._memory.handle, self._offset, self._rows)

    def _read(
        self,
        attachment: Attachment,
        on: stream.Stream | None,
        into: np.ndarray[Any, Any],
        timeout: float | None,
        show: bool | progress.Progress | None,
        blocking: bool,
    ) -> None:
        copy = self._fetch(attachment, on, plan.host_bytes(into), timeout, show, blocking)
        if copy is not None:
            self._remember(into, DOWN, on, copy)

    def _fetch(
        self,
        attachment: Attachment,
        on: stream.Stream | None,
        data: memoryview,
        timeout: float | None,
        show: bool | progress.Progress | None,
        blocking: bool = True,
    ) -> PinnedCopy | None:
        part = self._part(attachment, on)
        report = progress.reporter(show, "download")
        shared = not self._records(on)
        copy = router.read(self._connection, attachment, part, data, timeout, report, blocking=blocking, shared=shared)
        if self._connection._deferred:  # a copy that was sent before may have failed since: its answer has come
            self._connection.raise_deferred(part.stream, self._memory.handle)
        return copy

    def _places(self, out: np.ndarray[Any, Any] | None) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The array that is returned, and the one that takes its bytes as they come."""
        host = np.empty(self._shape, self.dtype) if out is None else self._check_out(out)
        whole = host.flags.c_contiguous and host.dtype.isnative
        return host, host if whole else np.empty(self._shape, self.dtype)

    def _check_out(self, out: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if not isinstance(out, np.ndarray) or out.shape != self._shape or out.dtype != self.dtype:
            what = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
            raise ArgumentError(
                f"out is {what}; it has to be a NumPy array of {self.dtype} {self._shape}.",
                reason="INVALID_ARGUMENT",
                fix="np.empty(x.shape, x.dtype); x.readinto(buffer) fills any buffer of its size.",
            )
        if not out.flags.writeable:
            raise ArgumentError("out is read-only.", reason="INVALID_ARGUMENT", fix="pass a writable array.")
        return out
