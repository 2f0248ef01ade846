"""Published arrays: one copy in device memory, e.g. of a model's weights, for many clients.

An array is published under a name, and attached under that name by other sessions, read-only. While it is published or
attached, no session writes to it, not even its publisher. The name ends with `Device.unpublish`, with the publisher's
session or with its device process; the memory is freed when the name, the publisher's array and all attached arrays are
gone.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from hearth import shapes
from hearth.arrays.base_array import BaseArray
from hearth.errors import (
    ArgumentError,
    BufferLostError,
    ConnectError,
    DtypeError,
    HearthError,
    TimeoutError,
    UnsupportedError,
)
from hearth.session.memory import Memory
from hearth.transport.backoff import MAX_PAUSE_S, Backoff
from hearth_proto.later import commands_pb2, device_pb2

if TYPE_CHECKING:
    import numpy as np

    from hearth.arrays.described import PublishedArray
    from hearth.interfaces import DeviceContext
    from hearth.session.connection import Connection


A = TypeVar("A")


class Publications:
    """Published names on one device: publishes arrays, and attaches arrays that other sessions published."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def publish(self, name: str, array: Any, tenants: Sequence[str], replace: bool = False) -> None:
        """Publishes an array; see `Device.publish`. Blocks.

        Args:
            name: Name within this tenant.
            array: An array of this device.
            tenants: Other tenants that may attach it; ``"*"``: all.
            replace: Ends an earlier publication under the name.

        Raises:
            DtypeError: `array` is no device array.
            UnsupportedError: `array` belongs to another device or session, or its dtype cannot be described by a name.
            ArgumentError: `array` is part of a buffer.
            InvalidHandleError: The name is in use.
        """
        if not isinstance(array, BaseArray):
            raise DtypeError(
                f"publish takes a DeviceArray, not a {type(array).__name__}.",
                fix="upload it with gpu.asarray(...).",
            )
        if array._connection is not self._connection:
            raise UnsupportedError(f"{array!r} belongs to another device or session.", fix="use array.publish(name).")
        if isinstance(tenants, str):
            tenants = (tenants,)
        from hearth.arrays.described import describe

        _check_whole_buffer(array)
        array._usable()
        self._connection.report(commands_pb2.Command(sync=commands_pb2.Sync(all_streams=True)), barrier=True)
        self._call(
            "Publish",
            device_pb2.PublishRequest(
                target=self._target(),
                buffer=array._memory.handle,
                name=name,
                tenants=tenants,
                description=describe(array.shape, array.dtype),
                replace=replace,
            ),
            device_pb2.PublishResponse,
        )
        array._memory.published = True

    def unpublish(self, name: str) -> None:
        """Ends a publication; see `Device.unpublish`. Blocks.

        Args:
            name: The published name.

        Raises:
            InvalidHandleError: There is no such name.
        """
        self._connection.attachment()  # otherwise a loss that was reported already is raised again
        request = device_pb2.UnpublishRequest(target=self._target(), name=name)
        self._call("Unpublish", request, device_pb2.UnpublishResponse)

    def attach(
        self, device: DeviceContext[A], name: str, tenant: str | None, shape: shapes.Shape | None, dtype: Any
    ) -> A:
        """Attaches a published array; see `Device.attach`. Blocks.

        Args:
            device: The device.
            name: The published name.
            tenant: Tenant that published it; None: this session's own.
            shape: Shape to view the memory with; None: the publisher's.
            dtype: Element type to view the memory with; None: the publisher's.

        Returns:
            The array.

        Raises:
            InvalidHandleError: There is no such name for this tenant.
            ArgumentError: The memory does not have the size of an array of that shape and dtype.
            BufferLostError: The device process was lost during the call.
        """
        from hearth.arrays.described import parse

        connection = self._connection
        requested_shape = None if shape is None else shapes.shape_of(shape)
        requested = (requested_shape, None if dtype is None else shapes.dtype_of(dtype))
        attachment = connection.attachment()
        handle = connection.mint()
        request = device_pb2.AttachBufferRequest(target=self._target(), buffer=handle, name=name, tenant=tenant or "")
        try:
            answer = self._call("AttachBuffer", request, device_pb2.AttachBufferResponse)
        except BaseException as error:
            if not isinstance(error, HearthError) or _may_have_run(error):
                self._give_back(request)
            raise
        space = attachment.space
        if space is None or answer.generation != space.generation:
            self._give_back(request)
            raise BufferLostError(
                f"device {connection.ordinal} lost its process while {name!r} was attached.",
                fix="attach it again with gpu.attach(name).",
            )
        memory = Memory(space, handle, answer.size)
        memory.read_only = True
        try:
            described = _shape_and_dtype(name, answer.size, parse(answer.description), requested)
        except HearthError:
            memory.free()
            raise
        return device._array_type(device, memory, 0, *described)

    def _give_back(self, request: device_pb2.AttachBufferRequest) -> None:
        """Frees, in another thread, a buffer that may have been attached without an answer to this request."""
        work = partial(self._free_attached, request)
        with contextlib.suppress(RuntimeError):  # no thread can be started while the interpreter ends
            threading.Thread(target=work, name="hearth-attach", daemon=True).start()

    def _free_attached(self, request: device_pb2.AttachBufferRequest) -> None:
        """Repeats the request, whose answer shows whether the buffer is attached, and frees the buffer.

        Repeats both until they are answered, the connection is closed, or the daemon was unreachable for the time of
        the session's lease.
        """
        free = device_pb2.FreeRequest(target=request.target, command=commands_pb2.Free(buffers=[request.buffer]))
        backoff = Backoff(self._connection.lease)
        while True:
            try:
                self._call("AttachBuffer", request, device_pb2.AttachBufferResponse)
                self._call("Free", free, commands_pb2.Done)
                return
            except HearthError as error:
                if not (_may_have_run(error) or error.retryable):
                    return  # nothing is attached
                if isinstance(error, TimeoutError):
                    backoff = Backoff(self._connection.lease)
                pause = backoff.pause(MAX_PAUSE_S)
                if pause is None:
                    return
                time.sleep(pause)

    def listed(self) -> list[PublishedArray]:
        """Lists the arrays that this session may attach; see `Device.published`. Blocks."""
        from hearth.arrays.described import PublishedArray, parse

        self._connection.attachment()  # as in `unpublish`
        request = device_pb2.ListPublishedRequest(target=self._target())
        answer = self._call("ListPublished", request, device_pb2.ListPublishedResponse)
        published = []
        for buffer in answer.buffers:
            described = parse(buffer.description)
            if described is not None and shapes.bytes_of(*described) != buffer.size:
                described = None
            shape, dtype = described or (None, None)
            published.append(PublishedArray(buffer.name, buffer.tenant, buffer.size, shape, dtype, buffer.attached))
        return published

    def _target(self) -> device_pb2.Target:
        return device_pb2.Target(session_token=self._connection.token, device=self._connection.ordinal)

    def _call(self, method: str, request: Any, response_type: Any) -> Any:
        connection = self._connection
        if connection.refusal is not None:
            raise connection.refusal.again()
        return connection.transport.call_device(method, request, response_type, connection.timeout)


def _may_have_run(error: HearthError) -> bool:
    """True if the daemon did not answer the request, which may have been executed or be executed later."""
    return error.broken or isinstance(error, ConnectError | TimeoutError)


def until_published(wait: float, attach: Callable[[], A]) -> A:
    """Attaches an array or an event, and waits until it is published. Blocks.

    Args:
        wait: Seconds to wait at most.
        attach: Attaches it; called again after `NOT_PUBLISHED`.

    Returns:
        The result of `attach`.

    Raises:
        ArgumentError: `wait` is negative or not finite.
        HearthError: An error that `attach` raises; `InvalidHandleError` if the name is not published in time.
    """
    backoff = backoff_within(wait)
    while True:
        try:
            return attach()
        except HearthError as error:
            time.sleep(pause_after(error, backoff))


def pause_after(error: HearthError, backoff: Backoff) -> float:
    """Returns the seconds until the next attempt to attach.

    Args:
        error: Error of the last attempt; raised again if it is not `NOT_PUBLISHED`, or if no time is left.
        backoff: The pauses.
    """
    pause = backoff.pause() if error.reason == "NOT_PUBLISHED" else None
    if pause is None:
        raise error
    return pause


def backoff_within(wait: float) -> Backoff:
    """Returns the pauses between attempts to attach an array or an event that is not published yet.

    Args:
        wait: Seconds from now.

    Returns:
        The pauses.

    Raises:
        ArgumentError: `wait` is negative or not finite.
    """
    if not 0 <= wait < math.inf:
        raise ArgumentError(f"wait is {wait} s; it must be a number from 0.", fix="pass seconds.")
    return Backoff(wait)


def _shape_and_dtype(
    name: str,
    size: int,
    described: tuple[tuple[int, ...], np.dtype[Any]] | None,
    requested: tuple[tuple[int, ...] | None, np.dtype[Any] | None],
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Returns shape and dtype for `size` bytes: those that the caller gave, otherwise those of the description.

    Raises `ArgumentError` if they do not match the size.
    """
    shape, dtype = requested
    if dtype is None:
        if described is None:
            raise ArgumentError(
                f"{name!r} has {size} bytes, and its publisher did not specify shape and dtype.",
                fix="pass them: gpu.attach(name, shape=..., dtype=...).",
            )
        dtype = described[1]
    if shape is None:
        shape = described[0] if described is not None and requested[1] is None else (size // dtype.itemsize,)
    if shapes.bytes_of(shape, dtype) != size:
        raise ArgumentError(
            f"{name!r} has {size} bytes; shape {shape} of {dtype} takes {shapes.bytes_of(shape, dtype)} bytes.",
            fix="pass shape= and dtype= that match the size.",
        )
    return shape, dtype


def _check_whole_buffer(array: BaseArray) -> None:
    """Raises `ArgumentError` if the array is only part of a buffer."""
    if array._offset or array._strides is not None or array.nbytes != array._memory.size:
        raise ArgumentError(
            f"{array!r} is part of a buffer of {array._memory.size} bytes, or has gaps; only whole buffers "
            "can be published.",
            fix="publish a separate copy: x.copy().publish(name).",
        )
