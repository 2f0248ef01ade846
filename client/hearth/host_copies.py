"""An array's contents from and to host memory, as NumPy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hearth import bulk, progress, stream, transfer
from hearth.errors import ArgumentError, DtypeError
from hearth.views import Views

if TYPE_CHECKING:
    from hearth.attachment import Attachment
    from hearth.connection import Connection


class HostCopies(Views):
    """How a `DeviceArray` is read and written by the host."""

    __slots__ = ("_connection", "_nbytes")

    _connection: Connection
    _nbytes: int

    def get(
        self,
        out: np.ndarray[Any, Any] | None = None,
        stream: stream.Stream | None = None,
        *,
        timeout: float | None = None,
        progress: bool | progress.Progress | None = None,
    ) -> np.ndarray[Any, Any]:
        """A copy in host memory, after the work before it on `stream` and on the array; in `out` if given.

        `timeout` in seconds. `progress`: True for a bar on a terminal or in a notebook, or `f(done, total)` in bytes.
        Raises what failed on the stream, `BufferLostError`, `DeviceLostError`, `TimeoutError`.
        """
        self._connection.raise_deferred()
        attachment = self._usable()
        host = np.empty(self._shape, self._dtype) if out is None else self._check_out(out)
        into = host if host.flags.c_contiguous and host.dtype.isnative else np.empty(self._shape, self._dtype)
        if self._nbytes:
            self._read(attachment, stream, into, timeout, progress)
        if into is not host:
            host[...] = into
        return host

    def item(self) -> Any:
        """The only element, as a Python object."""
        return self.get().item()

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
        progress: bool | progress.Progress | None = None,
    ) -> None:
        """Overwrites it with a host array of the same shape and dtype, which may be changed once this returns.

        Raises `ArgumentError` and `DtypeError` where they differ.
        """
        host = a if isinstance(a, np.ndarray) else np.asarray(a, self._dtype)
        if host.dtype.newbyteorder("=") != self._dtype:
            raise DtypeError(
                f"an array of {host.dtype} cannot be set into one of {self._dtype}.",
                reason="INVALID_ARGUMENT",
                fix=f"use a.astype({str(self._dtype)!r}).",
            )
        if host.shape != self._shape:
            raise ArgumentError(
                f"an array of shape {host.shape} cannot be set into one of shape {self._shape}.",
                reason="INVALID_ARGUMENT",
                fix="slice or reshape one of them, or use np.broadcast_to(a, shape).",
            )
        self._write(host, stream, progress)

    # ---- inside ----

    def _usable(self) -> Attachment:
        return self._connection.check(self._memory, self)

    def _stream(self, given: stream.Stream | None, attachment: Attachment) -> int:
        return stream.resolve(given, self._connection, attachment)

    def _write(
        self,
        host: np.ndarray[Any, Any],
        stream: stream.Stream | None,
        show: bool | progress.Progress | None,
    ) -> None:
        attachment = self._usable()
        host = np.ascontiguousarray(host, self._dtype)
        handle = self._stream(stream, attachment)
        data = transfer.host_bytes(host)
        report = progress.reporter(show, "upload")
        memory = self._memory.handle
        bulk.write(self._connection, attachment, handle, memory, self._offset, data, report, rows=self._rows)

    def _read(
        self,
        attachment: Attachment,
        on: stream.Stream | None,
        into: np.ndarray[Any, Any],
        timeout: float | None,
        show: bool | progress.Progress | None,
    ) -> None:
        handle = self._stream(on, attachment)
        data = transfer.host_bytes(into)
        report = progress.reporter(show, "download")
        memory = self._memory.handle
        bulk.read(self._connection, attachment, handle, memory, self._offset, data, timeout, report, rows=self._rows)

    def _check_out(self, out: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if not isinstance(out, np.ndarray) or out.shape != self._shape or out.dtype != self._dtype:
            what = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
            raise ArgumentError(
                f"out is {what}; it has to be a NumPy array of {self._dtype} {self._shape}.",
                reason="INVALID_ARGUMENT",
                fix="np.empty(x.shape, x.dtype)",
            )
        if not out.flags.writeable:
            raise ArgumentError("out is read-only.", reason="INVALID_ARGUMENT", fix="pass a writable array.")
        return out
