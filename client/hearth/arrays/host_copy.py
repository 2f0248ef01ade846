"""Copies between arrays on a device and host memory.

Covers the command's stream and byte range, progress reports, and the repetition of copies from and to pinned memory.
Does not cover routes (inline, shared memory, stripes): see `hearth.transfer.router`.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from hearth import base_stream as streams
from hearth import lazy_numpy as np
from hearth import progress as progresses
from hearth import telemetry
from hearth.arrays.allocation import allocate
from hearth.errors import ArgumentError, DtypeError, HearthError
from hearth.transfer import plan, router
from hearth.transport.spin_wait import DOWN, UP
from hearth_proto.layouts import StrideLayout

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from hearth.base_stream import BaseStream
    from hearth.interfaces import ArrayLike
    from hearth.progress import Progress
    from hearth.session.attachment import Attachment
    from hearth.transfer.pinned_copy import PinnedCopy

    class HostCopied(ArrayLike, Protocol):
        """An array, as this module uses it: `hearth.arrays.base_array.BaseArray`."""

        _copies: PinnedCopies | None
        _nbytes: int

        def _send(
            self,
            attachment: Attachment,
            region: plan.BufferRegion,
            data: memoryview,
            report: Progress | None,
            blocking: bool,
        ) -> PinnedCopy | None: ...


A = TypeVar("A", bound="ArrayLike")

CONVERSION_FAILURES = (TypeError, ValueError, OverflowError, RuntimeError, BufferError)
"""Exceptions that libraries raise for an object that cannot be converted to an array."""

_PAIRS = 8
"""Maximum number of host arrays that an array remembers, and of directions and streams for each of them. The memory is
cleared when it is full."""


class _Pair(NamedTuple):
    """A host array and the owner of its memory, as weak references, and the prepared copies for them."""

    host: Callable[[], Any]
    base: Callable[[], Any]
    copies: dict[tuple[int, int | None], PinnedCopy]
    """Prepared copies by direction and the id of the stream."""


class PinnedCopies:
    """Copies between one device array and pinned host arrays, kept so that they can be repeated.

    Determining the address of a host array, and whether it can be copied directly, takes longer than the rest of the
    client's work for a copy.
    """

    __slots__ = ("_pairs",)

    def __init__(self) -> None:
        self._pairs: dict[int, _Pair] = {}
        """Pairs by the id of the host array."""

    def find(
        self, array: ArrayLike, host: Any, direction: int, on: BaseStream | None, blocking: bool
    ) -> PinnedCopy | None:
        """Looks up the copy to repeat.

        Args:
            array: The device array.
            host: The host array, or any other object.
            direction: `UP` or `DOWN`.
            on: Stream of the copy; None: the current one.
            blocking: The call is to block until the copy is complete.

        Returns:
            The copy; None if there is none, or host array, stream or memory have changed since it was made.
        """
        pair = self._pairs.get(id(host))
        if (
            pair is None or pair.host() is not host or pair.base() is not host.base
            or host.shape != array._shape or host.dtype is not array._dtype
        ):  # fmt: skip
            return None
        flags = host.flags
        if not flags.c_contiguous or (direction == DOWN and not flags.writeable):
            return None
        if on is None:
            on = streams.current(array._connection)
        copy = pair.copies.get((direction, None if on is None else id(on)))
        if copy is None or copy.repeatable(array._memory, on, blocking):
            return copy
        self._pairs = {}  # a remembered copy may refer to an attachment that has ended
        return None

    def add(
        self, array: ArrayLike, host: np.ndarray[Any, Any], direction: int, stream: BaseStream | None, copy: PinnedCopy
    ) -> None:
        """Keeps a copy, to be found again by its host array.

        Args:
            array: The device array.
            host: The host array, which was copied directly.
            direction: `UP` or `DOWN`.
            stream: Stream of the copy, as the caller gave it; None: the current one.
            copy: The copy.
        """
        pairs = self._pairs
        if len(pairs) >= _PAIRS:
            self._pairs = pairs = {}
        pair = pairs.get(id(host))
        if pair is None or pair.host() is not host or pair.base() is not host.base:
            try:
                pairs[id(host)] = pair = _Pair(weakref.ref(host), weakref.ref(host.base), {})
            except TypeError:  # the owner of the memory does not support weak references
                return
        if len(pair.copies) >= _PAIRS:
            pair.copies.clear()
        on = stream if stream is not None else streams.current(array._connection)
        pair.copies[direction, None if on is None else id(on)] = copy


def region_of(array: ArrayLike, attachment: Attachment, on: BaseStream | None) -> plan.BufferRegion:
    """Describes the bytes of an array for a transfer.

    Args:
        array: The array.
        attachment: The attachment to use.
        on: Stream that orders the transfer; None: the current one.

    Returns:
        Stream, whether it is being recorded, buffer, offset and rows.

    Raises:
        UnsupportedError: The array does not consist of rows; `contiguous` makes a copy that does.
    """
    if on is None:
        on = streams.current(array._connection)
    stream = 0 if on is None else streams.resolve(on, array._connection, attachment)
    rows = None if array._rows is None else array._as_rows()
    recorded = on is not None and on._recorder is not None
    return plan.BufferRegion(stream, array._memory.handle, array._offset, rows, None, recorded)


def contiguous(array: A, on: BaseStream | None) -> A:
    """Returns the array itself if a transfer can read it, otherwise a contiguous copy on the device.

    The copy may be dropped once the command that reads it has been sent, because frees are ordered after it.

    Args:
        array: The array.
        on: Stream that orders the copy; None: the current one.
    """
    return array.copy(on) if isinstance(array._rows, StrideLayout) else array


# ---- writes ----


def check_source(array: ArrayLike, host: np.ndarray[Any, Any]) -> None:
    """Checks that a host array can overwrite an array: the same shape and dtype, in any byte order.

    Args:
        array: The device array.
        host: The host array.

    Raises:
        ArgumentError: The shapes differ.
        DtypeError: The dtypes differ.
    """
    dtype = array.dtype
    if host.dtype is not dtype and host.dtype.newbyteorder("=") != dtype:
        raise DtypeError(
            f"an array of {dtype} cannot be set from an array of {host.dtype}.",
            fix=f"use a.astype({str(dtype)!r}).",
        )
    if host.shape != array._shape:
        raise ArgumentError(
            f"an array of shape {array._shape} cannot be set from an array of shape {host.shape}.",
            fix="slice or reshape one of them, or use np.broadcast_to(a, shape).",
        )


@telemetry.traced("hearth.upload", telemetry.of_upload)
def write(
    array: HostCopied,
    host: np.ndarray[Any, Any] | memoryview,
    stream: BaseStream | None,
    show: bool | Progress | None,
    blocking: bool = False,
) -> None:
    """Overwrites an array with a host array.

    Args:
        array: The device array.
        host: A host array of its shape and dtype; or its bytes, if NumPy is not imported.
        stream: Stream that orders the write; None: the current one.
        show: The caller's ``progress`` argument.
        blocking: Blocks until pinned memory has been read.
    """
    if isinstance(array._rows, StrideLayout):
        temporary = allocate(array._device, array._shape, array._dtype, stream)
        write(temporary, host, stream, show, blocking)
        array.copy_from(temporary, stream)
        return
    attachment = array._usable()
    if isinstance(host, memoryview):
        dense, data = None, host
    else:
        dense = np.ascontiguousarray(host, array.dtype)
        data = plan.host_bytes(dense)
    region = region_of(array, attachment, stream)
    report = progresses.reporter(show, "upload")
    copy = array._send(attachment, region, data, report, blocking)
    if copy is not None and dense is host:
        _remember(array, dense, UP, stream, copy)


# ---- reads ----


def read(
    array: HostCopied,
    attachment: Attachment,
    on: BaseStream | None,
    into: np.ndarray[Any, Any],
    timeout: float | None,
    show: bool | Progress | None,
    blocking: bool,
) -> None:
    """Copies an array into a contiguous host array.

    Args:
        array: The device array.
        attachment: The attachment to use.
        on: Stream that orders the read; None: the current one.
        into: The host array.
        timeout: Seconds to wait at most; None: no limit.
        show: The caller's ``progress`` argument.
        blocking: Blocks until the bytes have arrived, also in pinned memory.

    Raises:
        TimeoutError: The bytes have not arrived in time.
        HearthError: Earlier work on the stream or the array failed.
    """
    copy = fetch(array, attachment, on, plan.host_bytes(into), timeout, show, blocking)
    if copy is not None:
        _remember(array, into, DOWN, on, copy)


def fetch(
    array: HostCopied,
    attachment: Attachment,
    on: BaseStream | None,
    data: memoryview,
    timeout: float | None,
    show: bool | Progress | None,
    blocking: bool = True,
) -> PinnedCopy | None:
    """Copies an array's bytes into a buffer.

    Args:
        array: The device array.
        attachment: The attachment to use.
        on: Stream that orders the read; None: the current one.
        data: The buffer.
        timeout: Seconds to wait at most; None: no limit.
        show: The caller's ``progress`` argument.
        blocking: Blocks until the bytes have arrived, also in pinned memory.

    Returns:
        The copy, if it can be repeated; otherwise None.

    Raises:
        TimeoutError: The bytes have not arrived in time.
        HearthError: Earlier work on the stream or the array failed.
    """
    source = contiguous(array, on)
    connection, region = array._connection, region_of(source, attachment, on)
    report = progresses.reporter(show, "download")
    copy = router.read(connection, attachment, region, data, timeout, report, blocking=blocking)
    if connection._deferred:  # an earlier copy may have failed meanwhile, and its answer has arrived
        connection.raise_deferred(region.stream, array._memory.handle)
    return copy if source is array else None


def repeat_read(
    array: ArrayLike, copy: PinnedCopy, out: np.ndarray[Any, Any], timeout: float | None, blocking: bool
) -> bool:
    """Repeats a copy to the host.

    Args:
        array: The device array.
        copy: The copy.
        out: The host array.
        timeout: Seconds to wait at most; None: no limit.
        blocking: Blocks until the bytes have arrived.

    Returns:
        False if the shared memory was lost, so that nothing was copied.

    Raises:
        TimeoutError: The bytes have not arrived in time.
        HearthError: Earlier work on the stream or the array failed.
    """
    if not blocking:
        copy.begin(out)
    elif not copy.run(out, timeout):
        return False
    if array._connection._deferred:  # as in `fetch`
        array._connection.raise_deferred(copy.stream, array._memory.handle)
    return True


def destination(
    array: ArrayLike, out: np.ndarray[Any, Any] | None
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Makes the host arrays for a read.

    Args:
        array: The device array.
        out: The caller's array; None: a new one.

    Returns:
        The array that `get` returns, and the contiguous array that receives the bytes, which may be the same.

    Raises:
        ArgumentError: `out` is read-only, or of another shape or dtype.
    """
    host = np.empty(array._shape, array.dtype) if out is None else _check_out(array, out)
    direct = host.flags.c_contiguous and host.dtype.isnative
    return host, host if direct else np.empty(array._shape, array.dtype)


def _check_out(array: ArrayLike, out: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not isinstance(out, np.ndarray) or out.shape != array._shape or out.dtype != array.dtype:
        description = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise ArgumentError(
            f"out is {description}; it must be a NumPy array of {array.dtype} {array._shape}.",
            fix="pass a stream by its name: x.get(stream=s)."
            if isinstance(out, streams.BaseStream)
            else "pass np.empty(x.shape, x.dtype); x.readinto(buffer) accepts any buffer of the same size.",
        )
    if not out.flags.writeable:
        raise ArgumentError("out is read-only.", fix="pass a writable array.")
    return out


def _remember(
    array: HostCopied, host: np.ndarray[Any, Any], direction: int, on: BaseStream | None, copy: PinnedCopy
) -> None:
    if type(host) is np.ndarray and host.dtype is array._dtype and host.base is not None:
        if array._copies is None:
            array._copies = PinnedCopies()
        array._copies.add(array, host, direction, on, copy)


def array_of(obj: Any, dtype: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    """Converts an object to a host array in C order.

    Args:
        obj: An object that `np.asarray` accepts.
        dtype: Type of the elements; None: that of `obj`.

    Returns:
        The array; `obj` itself if it is one.

    Raises:
        DtypeError: `obj` cannot be converted.
    """
    try:
        return np.asarray(obj, dtype, order="C")
    except HearthError:  # of a device array, whose conversion reads it
        raise
    except CONVERSION_FAILURES as error:
        raise DtypeError(
            f"this {type(obj).__name__} cannot be converted to an array ({error}).",
            fix="pass an object that np.asarray accepts.",
        ) from None
