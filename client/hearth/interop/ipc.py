"""Arrays exported to this very process: the memory of a `DeviceArray`, for libraries that use the GPU themselves.

>>> with x.ipc() as view:                       # or view = x.ipc(), and view.close()
...     cupy.asarray(view)[:] *= 2              # or torch.as_tensor(view, device="cuda"), torch.from_dlpack(view)
...     cupy.cuda.get_current_stream().synchronize()
>>> x.get()

Nothing is copied but once: an array's buffer is moved into separate memory when it is first exported, so that no other
array lies beside it. The daemon and this process do not wait for each other's work: finish what was begun there before
using the array here (``gpu.synchronize()``), and here before using it there.
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
from hearth.interop.ipc_memory import MappableDevice, Mapping, device_of
from hearth_proto.v1 import commands_pb2, device_pb2

if TYPE_CHECKING:
    from types import TracebackType

    from hearth.interfaces import ArrayLike
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.session.lease import NodeSession


class Exported:
    """An array's memory, mapped here until `close`, the end of ``with``, or until nothing refers to this any more.

    On CUDA it has ``__cuda_array_interface__`` and DLPack: ``cupy.asarray(view)``, ``torch.as_tensor(view,
    device="cuda")``, ``torch.from_dlpack(view)``; on the CPU backend ``np.asarray(view)`` and DLPack. What is made of
    it shares the memory, keeps the view alive, and must not be used once it is closed. `close` waits for this
    process's work on the GPU. The memory stays, in both processes, when either of them is killed; when the daemon's
    device process is lost, the array is lost with it and only this view still has the contents.

    Graphs, kernels and copies use the `DeviceArray` as before. It cannot be published.
    """

    def __init__(self, array: ArrayLike, mapping: Mapping, number: int) -> None:
        self._array = array
        self._mapping = mapping
        self._session = array._device._node._session
        self._number = number
        self._release = weakref.finalize(self, _abandon, self._session, array._connection, mapping, number)
        self._release.atexit = False  # the process's mappings end with it, and the session's exports with that

    if not TYPE_CHECKING:  # to type checkers there would be nothing that it has not

        def __getattr__(self, name: str) -> Any:
            # Libraries look whether it is there: on the CPU it has to be missing.
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

    # ---- what it is ----

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
        """Address of the first element in this process: a device pointer, or on the CPU backend one to host memory.

        Raises:
            ClosedError: The export is closed.
        """
        if self.closed:
            raise ClosedError("this export is closed.", reason="CANCELLED", fix="export it again: x.ipc().")
        return self._mapping.address + self._array._offset

    @property
    def closed(self) -> bool:
        """True once it was closed."""
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
        stream: Any = None,  # of the consumer; the module's is out of sight here
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule. `stream` is not looked at: see the module's word on waiting. Raises `BufferError` where a copy or
        another device is asked for, and for a dtype that DLPack does not have."""
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("an exported array is seen where it lies: neither copied nor on another device")
        return self._capsule(max_version)

    def _capsule(self, max_version: tuple[int, int] | None, copied: bool = False) -> Any:
        return dlpack.capsule(
            self, self.address, self.__dlpack_device__(), self.shape, self.strides, self.dtype,
            max_version=max_version, copied=copied,
        )  # fmt: skip

    # ---- the end ----

    def close(self) -> None:
        """Unmaps it, once this process's work on the GPU is done, and tells the daemon. A second call does nothing."""
        if self._release.detach() is None or os.getpid() != self._session.pid:
            return  # in the child of a fork both are the parent's
        try:
            self._mapping.close()
        finally:
            _tell(self._array._connection, self._number)

    def __enter__(self) -> Exported:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def export(array: ArrayLike) -> Exported:
    """See `DeviceArray.ipc`."""
    if not array.nbytes:
        raise ArgumentError(
            f"{array!r} has no elements, and so no memory to export.",
            reason="INVALID_ARGUMENT",
            fix="export one that has.",
        )
    connection = array._connection
    device = device_of(array._device.properties)  # before anything is moved there: whether this process could map it
    attachment = array._usable()
    _await(array, attachment)
    number = connection.mint()
    try:
        mapping = _map(array, device, number)
        space = attachment.space
        if space is None or space.lost or array._memory.owner is not space:
            mapping.close()
            raise BufferLostError(
                f"device {connection.ordinal} lost its process while {array!r} was exported.",
                reason="BUFFER_LOST",
                fix="make the array again, and export that.",
            )
    except BaseException:
        _tell(connection, number)
        raise
    return Exported(array, mapping, number)


def _await(array: ArrayLike, attachment: Attachment) -> None:
    """Waits, however long it takes, until what was sent for the array is done: by reading a byte of it. Raises what a
    read does."""
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


def _tell(connection: Connection, number: int) -> None:
    """Notifies the daemon that it may release the memory. If that fails, the session is over, and the daemon has done
    so."""
    request = device_pb2.ReleaseIpcRequest(target=_target(connection), export=number)
    with contextlib.suppress(HearthError):
        connection.transport.call_device("ReleaseIpc", request, device_pb2.ReleaseIpcResponse, connection.timeout)


def _abandon(session: NodeSession, connection: Connection, mapping: Mapping, number: int) -> None:
    """Called by the garbage collector: what takes long is left to another thread, while there is one."""

    def release() -> None:
        with contextlib.suppress(HearthError):
            mapping.close()
        _tell(connection, number)

    if os.getpid() != session.pid:
        return
    if session.closed:
        with contextlib.suppress(HearthError):
            mapping.close()
    else:
        session.later(release)


def _target(connection: Connection) -> device_pb2.Target:
    return device_pb2.Target(session_token=connection.token, device=connection.ordinal)
