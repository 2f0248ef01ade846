"""Errors of names that CuPy has and Hearth does not: each says what to use instead.

A program that was written for CuPy, with ``cp = node.device(0)``, gets such an error at its first name that must be
changed: ``cp.cuda.Stream()``, ``stream.ptr``, ``cp.sum``. The page ``docs/coming-from-cupy.md`` has the same
names and texts.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from hearth.errors import UnsupportedAttributeError

_TABLE = """
ElementwiseKernel ReductionKernel fuse vectorize
    write a raw kernel: gpu.RawKernel(code, name)
RawKernel.kernel RawModule.module
    use the object itself: a client has no handle of the driver
RawKernel.code RawKernel.file_path RawKernel.options RawKernel.backend RawKernel.enable_cooperative_groups
RawModule.code RawModule.file_path RawModule.options RawModule.backend RawModule.enable_cooperative_groups
RawModule.name_expressions
    keep the values in the program: they are not read back
RawKernel.compile
    make the kernel with module.get_function(name), and call module.compile()
cuda.Stream
    use gpu.stream(priority=p)
cuda.Stream.null cuda.Stream.ptds
    leave out the stream: work outside a with block on a stream goes to the default stream
cuda.Stream.from_external cuda.ExternalStream
    order the work of both libraries on the host: the daemon runs the work, and has no streams of this process
cuda.get_current_stream Stream.use
    name the stream where it begins: with gpu.stream() as s:
cuda.get_elapsed_time cuda.runtime.eventElapsedTime
    use hearth.get_elapsed_time(start, end)
Stream.ptr Stream.__cuda_stream__ Event.ptr
    pass the object itself, as in stream=s: it has no handle in this process
Stream.device_id
    keep the device that made the stream
Stream.is_non_blocking cuda.runtime.streamGetFlags
    leave it out: every stream is non-blocking, and waits for another one only for work on the same array
cuda.Graph
    record in a block: with gpu.graph() as g:
cuda.Event
    use gpu.event()
cuda.Event(interprocess=True) cuda.runtime.ipcGetEventHandle cuda.runtime.ipcOpenEventHandle
    use event.publish(name) and, in the other process, gpu.attach_event(name)
Graph.upload cuda.runtime.graphUpload
    leave it out: the end of the block makes the graph on the device
Graph.graph Graph.graphExec
    use g.launch(): a client has no handle of the driver
cuda.nccl.available
    look for collectives in node.describe().features
cuda.nccl.get_version cuda.nccl.get_build_version
    leave it out: the daemon selects and loads NCCL
cuda.nccl.get_unique_id
    use hearth.Group(devices): no id is passed on
cuda.nccl.groupStart cuda.nccl.groupEnd
    use with group.batch():
cuda.nccl.NcclError
    catch hearth.CommunicatorError
cuda.nccl.check_status cuda.runtime.check_status
    leave it out: calls raise their errors themselves
cuda.nccl.NcclCommunicator cuda.nccl.NcclCommunicator.initAll
    use hearth.Group(node.devices)
cuda.nccl.NcclCommunicator.destroy
    use group.close()
cuda.nccl.NcclCommunicator.abort
    pass timeout= to the operation: the daemon ends it when a rank is late or lost
cuda.nccl.NcclCommunicator.comm
    use the group itself: a client has no handle of NCCL
cuda.nccl.NcclCommunicator.device_id cuda.nccl.NcclCommunicator.rank_id
    use group.devices, whose index is the rank
cuda.nccl.NcclCommunicator.size
    use len(group)
cuda.nccl.NcclCommunicator.allReduce
    use group.all_reduce(arrays, op="sum")
cuda.nccl.NcclCommunicator.reduce
    use group.reduce(arrays, root=0, op="sum")
cuda.nccl.NcclCommunicator.broadcast cuda.nccl.NcclCommunicator.bcast
    use group.broadcast(arrays, root=0)
cuda.nccl.NcclCommunicator.reduceScatter
    use group.reduce_scatter(arrays, op="sum")
cuda.nccl.NcclCommunicator.allGather
    use group.all_gather(arrays)
cuda.nccl.NcclCommunicator.send cuda.nccl.NcclCommunicator.recv
    use group.send(x, to=1) and group.recv(y, source=0)
cuda.nccl.NcclCommunicator.check_async_error
    call gpu.synchronize(), which raises the error
cuda.nccl.NCCL_SUM cuda.nccl.NCCL_PROD cuda.nccl.NCCL_MAX cuda.nccl.NCCL_MIN cuda.nccl.NCCL_AVG
    use op="sum", "prod", "max", "min" or "mean"
cuda.nccl.NCCL_INT8 cuda.nccl.NCCL_CHAR cuda.nccl.NCCL_UINT8 cuda.nccl.NCCL_INT32 cuda.nccl.NCCL_INT
cuda.nccl.NCCL_UINT32 cuda.nccl.NCCL_INT64 cuda.nccl.NCCL_UINT64 cuda.nccl.NCCL_FLOAT16 cuda.nccl.NCCL_HALF
cuda.nccl.NCCL_FLOAT32 cuda.nccl.NCCL_FLOAT cuda.nccl.NCCL_FLOAT64 cuda.nccl.NCCL_DOUBLE cuda.nccl.NCCL_BFLOAT16
    leave it out: arrays have a dtype
cuda.is_available cuda.runtime.getDeviceCount
    use len(node.devices)
cuda.runtime.getDevice cuda.runtime.setDevice
    use node.device(i) for the i-th device
cuda.runtime.deviceGetAttribute cuda.runtime.getDeviceProperties
    use gpu.properties
cuda.runtime.deviceGetByPCIBusId cuda.runtime.deviceGetPCIBusId
    compare gpu.properties.uuid
cuda.runtime.is_hip
    use gpu.properties.backend
cuda.runtime.driverGetVersion cuda.runtime.runtimeGetVersion cuda.get_local_runtime_version
    use gpu.properties.driver_version and gpu.properties.runtime_version
cuda.runtime.deviceSynchronize
    use gpu.synchronize()
cuda.runtime.deviceCanAccessPeer cuda.runtime.deviceEnablePeerAccess cuda.runtime.deviceDisablePeerAccess
    leave it out: y.copy_from(x) and groups work between all devices of a node
cuda.runtime.deviceGetLimit cuda.runtime.deviceSetLimit
    leave it out: limits of a device apply to all its sessions
cuda.runtime.CUDARuntimeError
    catch hearth.HearthError, or one of its subclasses
cuda.runtime.ipcGetMemHandle cuda.runtime.ipcOpenMemHandle cuda.runtime.ipcCloseMemHandle
    use x.publish(name) and, in the other process, gpu.attach(name)
cuda.runtime.malloc cuda.runtime.mallocAsync cuda.runtime.mallocFromPoolAsync
    use gpu.empty(size, np.uint8)
cuda.runtime.free cuda.runtime.freeAsync
    use x.free(), or drop the array
cuda.runtime.mallocManaged cuda.runtime.memPrefetchAsync cuda.runtime.memAdvise
    use gpu.empty, x.set(a) and x.get(): there is no managed memory
cuda.runtime.mallocArray cuda.runtime.malloc3DArray cuda.runtime.freeArray cuda.runtime.createTextureObject
cuda.runtime.destroyTextureObject cuda.runtime.createSurfaceObject cuda.runtime.destroySurfaceObject
cuda.runtime.memcpy2DFromArray cuda.runtime.memcpy2DFromArrayAsync cuda.runtime.memcpy2DToArray
cuda.runtime.memcpy2DToArrayAsync
    read from an array on the device: there are no textures and surfaces
cuda.runtime.hostAlloc cuda.runtime.freeHost
    use hearth.empty_pinned(size, np.uint8), and drop the array
cuda.runtime.hostRegister cuda.runtime.hostUnregister
    copy to an array of hearth.empty_pinned(shape, dtype)
cuda.runtime.memGetInfo
    use gpu.memory_usage()
cuda.runtime.memcpy cuda.runtime.memcpyAsync
    use x.set(a), x.get(out=a) or y.copy_from(x)
cuda.runtime.memcpyPeer cuda.runtime.memcpyPeerAsync
    use y.copy_from(x), between devices, too
cuda.runtime.memcpy2D cuda.runtime.memcpy2DAsync cuda.runtime.memcpy3D cuda.runtime.memcpy3DAsync
    copy a slice: x[:, 1:3].set(a)
cuda.runtime.memset cuda.runtime.memsetAsync
    use x.fill(value)
cuda.runtime.pointerGetAttributes cuda.runtime.PointerAttributes
    use x.device and x.nbytes: a client has no addresses
cuda.runtime.memPoolTrimTo
    use gpu.memory_cleanup()
cuda.runtime.deviceGetDefaultMemPool cuda.runtime.deviceGetMemPool cuda.runtime.deviceSetMemPool
cuda.runtime.memPoolCreate cuda.runtime.memPoolDestroy cuda.runtime.memPoolGetAttribute
cuda.runtime.memPoolSetAttribute cuda.runtime.MemPoolProps
    leave it out: the daemon owns the memory pool
cuda.runtime.streamCreate cuda.runtime.streamCreateWithFlags cuda.runtime.streamCreateWithPriority
cuda.runtime.streamDestroy
    use gpu.stream(priority=p), and drop the stream
cuda.runtime.streamSynchronize
    use s.synchronize()
cuda.runtime.streamQuery
    use s.done
cuda.runtime.streamWaitEvent
    use s.wait_event(e)
cuda.runtime.streamGetPriority
    use s.priority
cuda.runtime.streamAddCallback cuda.runtime.launchHostFunc
    use s.launch_host_func(f, *args)
cuda.runtime.streamBeginCapture cuda.runtime.streamEndCapture cuda.runtime.graphInstantiate
    use s.begin_capture() and g = s.end_capture()
cuda.runtime.streamIsCapturing
    use s.is_capturing()
cuda.runtime.eventCreate cuda.runtime.eventCreateWithFlags cuda.runtime.eventDestroy
    use gpu.event(), and drop the event
cuda.runtime.eventRecord
    use s.record(e)
cuda.runtime.eventQuery
    use e.done
cuda.runtime.eventSynchronize
    use e.synchronize()
cuda.runtime.graphLaunch
    use g.launch(stream=s)
cuda.runtime.graphDestroy cuda.runtime.graphExecDestroy
    use g.close(), or drop the graph
cuda.runtime.graphDebugDotPrint
    use g.debug_dot_str()
cuda.runtime.profilerStart cuda.runtime.profilerStop
    use with gpu.trace() as t:
cuda.runtime.memcpyHostToHost cuda.runtime.memcpyHostToDevice cuda.runtime.memcpyDeviceToHost
cuda.runtime.memcpyDeviceToDevice cuda.runtime.memcpyDefault
    leave it out: x.set, x.get and copy_from have one direction each
cuda.runtime.streamDefault cuda.runtime.streamNonBlocking cuda.runtime.streamLegacy cuda.runtime.streamPerThread
cuda.runtime.eventDefault cuda.runtime.eventBlockingSync cuda.runtime.eventDisableTiming
cuda.runtime.eventInterprocess cuda.runtime.hostAllocDefault cuda.runtime.hostAllocPortable
cuda.runtime.hostAllocMapped cuda.runtime.hostAllocWriteCombined cuda.runtime.streamCaptureModeGlobal
cuda.runtime.streamCaptureModeThreadLocal cuda.runtime.streamCaptureModeRelaxed cuda.runtime.streamCaptureStatusNone
cuda.runtime.streamCaptureStatusActive cuda.runtime.streamCaptureStatusInvalidated cuda.runtime.memoryTypeUnregistered
cuda.runtime.memoryTypeHost cuda.runtime.memoryTypeDevice cuda.runtime.memoryTypeManaged
    leave it out: no call takes such a number
asnumpy
    use x.get()
moveaxis
    use x.moveaxis(0, -1)
ndarray
    use hearth.DeviceArray
ndarray.data
    pass the array itself to a kernel, and x.ipc() to a library on the same GPU: a client has no addresses
get_array_module
    leave it out: there are no array functions
get_default_memory_pool
    use gpu.memory_cleanup() and gpu.memory_usage()
get_default_pinned_memory_pool
    use hearth.empty_pinned(shape, dtype)
cuda.Device
    use node.device(i), node.gpu, or hearth.device(), of a session that the first call opens
"""
"""Names of CuPy's main module, of `cuda` and of its classes, in groups that end with what to use instead."""


_ARRAY_FUNCTIONS = (
    "use NumPy on the host, with x.get() and gpu.asarray(a), or write a kernel: gpu.RawKernel(code, name)"
)
"""What to use instead of functions and modules that CuPy has from NumPy."""


@cache
def fixes() -> dict[str, str]:
    """Returns what to use instead of each name, without a full stop."""
    table: dict[str, str] = {}
    names: list[str] = []
    for line in _TABLE.strip().splitlines():
        if line.startswith(" "):
            table.update(dict.fromkeys(names, line.strip()))
            names = []
        else:
            names += line.split()
    return table


def refusal(name: str) -> UnsupportedAttributeError:
    """Builds the error of a name that CuPy has and Hearth does not.

    Args:
        name: A key of `fixes`, or another name below one of CuPy's modules.

    Returns:
        The error, an `AttributeError`.
    """
    return _missing(name, fixes().get(name, "see docs/coming-from-cupy.md"))


def _missing(name: str, fix: str, library: str = "CuPy") -> UnsupportedAttributeError:
    return UnsupportedAttributeError(
        f"Hearth has no {name}, which {library} has.", fix=f"{fix}.", details={"name": name}
    )


def _check_not_numpys(name: str) -> None:
    """Raises `UnsupportedAttributeError` for a public name of NumPy, most of which CuPy has in its main module."""
    if name.startswith("_"):
        return
    import numpy

    if name not in dir(numpy):
        return
    value = getattr(numpy, name)
    array_function = isinstance(value, ModuleType) or (callable(value) and not isinstance(value, type))
    raise _missing(name, _ARRAY_FUNCTIONS if array_function else f"use np.{name}", "NumPy")


class CupyNamespace:
    """A module or class of CuPy that Hearth does not have. Each of its names, and a call of it, raises an error."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> CupyNamespace:
        if name.startswith("__"):
            raise AttributeError(name)
        full_name = f"{self._name}.{name}"
        if any(key.startswith(f"{full_name}.") for key in fixes()):
            return CupyNamespace(full_name)
        raise refusal(full_name)

    def __call__(self, *_args: object, **_keywords: object) -> NoReturn:
        """Raises the error of the name itself, which CuPy can call."""
        raise refusal(self._name)


class CupyNames:
    """Base class of objects that have CuPy's names: a missing one raises an error that says what to use instead."""

    __slots__ = ()

    _cupy: ClassVar[str] = ""
    """CuPy's class; empty: the module `cupy` itself."""

    if not TYPE_CHECKING:  # with it, type checkers would accept every attribute name

        def __getattr__(self, name: str) -> Any:
            full_name = f"{self._cupy}.{name}" if self._cupy else name
            if full_name in fixes():
                raise refusal(full_name)
            if full_name == "cuda":
                return CupyNamespace(full_name)
            if not self._cupy:
                _check_not_numpys(name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
