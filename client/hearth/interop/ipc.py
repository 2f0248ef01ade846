"""Exports of arrays to this process: the memory of a `DeviceArray`, for libraries that use the GPU themselves.

>>> with x.ipc() as view:                       # or view = x.ipc(), and view.close()
...     cupy.asarray(view)[:] *= 2              # or torch.as_tensor(view, device="cuda"), torch.from_dlpack(view)
...     cupy.cuda.get_current_stream().synchronize()
>>> x.get()

Data is copied only once: when an array is first exported, its buffer is moved into separate memory that contains no
other array. The daemon and this process do not wait for each other's work. Finish work that was started through Hearth
before using the array here (``gpu.synchronize()``), and work that was started here before using the array through
Hearth.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import TYPE_CHECKING, Any

from hearth import base_stream as streams
from hearth.errors import ArgumentError, BufferLostError, ClosedError, HearthError
from hearth.interop import dlpack
from hearth.interop.ipc_file import fetch
from hearth.interop.ipc_memory import device_of
from hearth_proto.v1 import commands_pb2, device_pb2

if TYPE_CHECKING:
    from hearth.interfaces import ArrayLike
    from hearth.interop.ipc_memory import MappableDevice, Mapping
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.session.lease import NodeSession


class Exported:
    """An array's memory, mapped into this process.

    It stays mapped until `close`, until the end of ``with``, or until nothing refers to this object any more.

    On CUDA, the object has ``__cuda_array_interface__`` and DLPack: ``cupy.asarray(view)``, ``torch.as_tensor(view,
    device="cuda")``, ``torch.from_dlpack(view)``; on the CPU backend, ``np.asarray(view)`` and DLPack. Arrays made of
    it share the memory, keep this object alive, and must not be used after `close`. `close` waits for this process's
    work on the GPU. If either process is killed, the memory remains valid in the other. If the device process is lost,
    the `DeviceArray` is lost, and only this object still has the contents.

    Graphs, kernels and copies can use the `DeviceArray` as before, but it cannot be published.
    """

    def __init__(self, array: ArrayLike, mapping: Mapping, number: int) -> None:
        self._array = array
        self._mapping = mapping
        self._session = array._device._node._session
        self._number = number
        self._release = weakref.finalize(self, _abandon, self._session, array._connection, mapping, number)
        self._release.atexit = False  # at exit, the system ends the mappings, and the daemon the session's exports

    if not TYPE_CHECKING:  # with it, type checkers would accept every attribute name

        def __getattr__(self, name: str) -> Any:
            # Libraries test for the attribute, so it must be missing on the CPU backend.
            if name == "__cuda_array_interface__" and self._mapping.cuda:
                return {**self._interface(), "version": 3, "stream": None}
            if name == "__array_interface__" and not self._mapping.cuda:
                return {**self._interface(), "version": 3}
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def _interface(self) -> dict[str, Any]:
        array = self._array
        return {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "descr": array.dtype.descr,
            "data": (self.address, False),
            "strides": array._strides,
        }

    # ---- attributes ----

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._array.shape

    @property
    def dtype(self) -> Any:
        """The type of an element."""
        return self._array.dtype

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis."""
        return self._array.strides

    @property
    def address(self) -> int:
        """Address of the first element in this process: a device pointer, or on the CPU backend a host pointer.

        Raises:
            ClosedError: The export is closed.
        """
        if self.closed:
            raise ClosedError("this export is closed.", fix="export the array again: x.ipc().")
        return self._mapping.address + self._array._offset

    @property
    def closed(self) -> bool:
        """True once the export has been closed."""
        return not self._release.alive

    def __repr__(self) -> str:
        closed = ", closed" if self.closed else ""
        return f"<hearth.interop.ipc.Exported shape={self.shape}, dtype={self.dtype}{closed}>"

    # ---- DLPack ----

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._mapping.dlpack_device

    def __dlpack__(
        self,
        *,
        stream: Any = None,  # the consumer's stream
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Returns a DLPack capsule of the memory.

        `stream` is ignored: see the module's notes on waiting. Raises `BufferError` if a copy or another device is
        requested, or DLPack does not have the dtype.
        """
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("an exported array can be shared only in place: without a copy, and on the same device")
        return self._capsule(max_version)

    def _capsule(self, max_version: tuple[int, int] | None, copied: bool = False) -> Any:
        return dlpack.capsule(
            self, self.address, self.__dlpack_device__(), self.shape, self.strides, self.dtype,
            max_version=max_version, copied=copied,
        )  # fmt: skip

    # ---- closing ----

    def close(self) -> None:
        """Unmaps the memory after this process's work on the GPU is done, and notifies the daemon.

        Blocks. A second call does nothing.
        """
        if self._release.detach() is None or os.getpid() != self._session.pid:
            return  # in the child of a fork, mapping and session belong to the parent
        try:
            self._mapping.close()
        finally:
            _notify_released(self._array._connection, self._number)

    def __enter__(self) -> Exported:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def export(array: ArrayLike) -> Exported:
    """Exports an array to this process; see `DeviceArray.ipc`. Blocks.

    Args:
        array: The array.

    Returns:
        The mapped memory.

    Raises:
        ArgumentError: The array is empty.
        UnsupportedError: This process cannot map the memory.
        BufferLostError: The device process was lost during the call.
        HearthError: Earlier work on the array failed, or the daemon refused the export.
    """
    if not array.nbytes:
        raise ArgumentError(
            f"{array!r} has no elements, so it has no memory to export.",
            fix="export an array that has elements.",
        )
    connection = array._connection
    # checked before the daemon moves the buffer: this process must be able to map it
    device = device_of(array._device.properties)
    attachment = array._usable()
    _wait_for_work(array, attachment)
    number = connection.mint()
    try:
        mapping = _map(array, device, number)
        space = attachment.space
        if space is None or space.lost or array._memory.owner is not space:
            mapping.close()
            raise BufferLostError(
                f"device {connection.ordinal} lost its process while {array!r} was exported.",
                fix="create the array again, and export the new array.",
            )
    except BaseException:
        _notify_released(connection, number)
        raise
    return Exported(array, mapping, number)


def _wait_for_work(array: ArrayLike, attachment: Attachment) -> None:
    """Blocks, without a time limit, until the work submitted for the array is done, by reading one byte of it.

    Raises the errors of a read.
    """
    connection = array._connection
    command = commands_pb2.Command(stream=streams.resolve(None, connection, attachment))
    command.read.buffer, command.read.offset, command.read.size = array._memory.handle, array._offset, 1
    connection.report(command, attachment=attachment)


def _map(array: ArrayLike, device: MappableDevice, number: int) -> Mapping:
    connection = array._connection
    request = device_pb2.ExportIpcRequest(target=_target(connection), buffer=array._memory.handle, export=number)
    answer = connection.transport.call_device("ExportIpc", request, device_pb2.ExportIpcResponse, connection.timeout)
    file = fetch(answer.path, answer.ticket)
    try:
        return device.map(file, answer.allocation_bytes)
    finally:
        os.close(file)


def _notify_released(connection: Connection, number: int) -> None:
    """Notifies the daemon that it may release the memory.

    If the call fails, the session has ended, and the daemon has released the memory already.
    """
    request = device_pb2.ReleaseIpcRequest(target=_target(connection), export=number)
    with contextlib.suppress(HearthError):
        connection.transport.call_device("ReleaseIpc", request, device_pb2.ReleaseIpcResponse, connection.timeout)


def _abandon(session: NodeSession, connection: Connection, mapping: Mapping, number: int) -> None:
    """Releases an export whose object was garbage-collected.

    Slow steps run in another thread while the session is open.
    """

    def release() -> None:
        with contextlib.suppress(HearthError):
            mapping.close()
        _notify_released(connection, number)

    if os.getpid() != session.pid:
        return
    if session.closed:
        with contextlib.suppress(HearthError):
            mapping.close()
    else:
        session.run_in_keeper(release)


def _target(connection: Connection) -> device_pb2.Target:
    return device_pb2.Target(session_token=connection.token, device=connection.ordinal)
