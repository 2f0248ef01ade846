"""Hearth's client: arrays and kernels on the GPUs of a node, without a CUDA installation in the client's process.

>>> import numpy as np, hearth
>>> with hearth.connect() as node:
...     gpu = node.device(0)
...     x = gpu.asarray(np.arange(4, dtype=np.float32))
...     double = gpu.RawKernel('extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }', "twice")
...     double((1,), (4,), (x,))
...     print(x.get())

Classes and methods have CuPy's names if CuPy has an equivalent. Modules are imported when a name is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hearth_proto import VERSION as __version__

if TYPE_CHECKING:
    from hearth import aio as aio
    from hearth.arrays.described import PublishedArray as PublishedArray
    from hearth.arrays.read_only import read_only as read_only
    from hearth.arrays.tensor_map import Im2col as Im2col
    from hearth.arrays.tensor_map import Im2colWide as Im2colWide
    from hearth.arrays.tensor_map import TensorMap as TensorMap
    from hearth.blocking.array import DeviceArray as DeviceArray
    from hearth.blocking.device import Device as Device
    from hearth.blocking.dispatch import PendingDispatch as PendingDispatch
    from hearth.blocking.function import Function as Function
    from hearth.blocking.graph import Graph as Graph
    from hearth.blocking.graph import Prepared as Prepared
    from hearth.blocking.group import Group as Group
    from hearth.blocking.module import RawModule as RawModule
    from hearth.blocking.node import Node as Node
    from hearth.blocking.node import connect as connect
    from hearth.blocking.node import device as device
    from hearth.blocking.profile import Profile as Profile
    from hearth.blocking.profile import Trace as Trace
    from hearth.blocking.stream import Event as Event
    from hearth.blocking.stream import Stream as Stream
    from hearth.blocking.stream import get_elapsed_time as get_elapsed_time
    from hearth.collectives.flight_recorder import FlightRecord as FlightRecord
    from hearth.collectives.reduction import premul_sum as premul_sum
    from hearth.endpoint.retry import retrying as retrying
    from hearth.errors import ArgumentError as ArgumentError
    from hearth.errors import AuthenticationError as AuthenticationError
    from hearth.errors import BufferLostError as BufferLostError
    from hearth.errors import CancelledError as CancelledError
    from hearth.errors import ClosedError as ClosedError
    from hearth.errors import CommunicatorError as CommunicatorError
    from hearth.errors import CompileError as CompileError
    from hearth.errors import ConnectError as ConnectError
    from hearth.errors import DeviceLostError as DeviceLostError
    from hearth.errors import DtypeError as DtypeError
    from hearth.errors import HearthError as HearthError
    from hearth.errors import InvalidHandleError as InvalidHandleError
    from hearth.errors import LaunchError as LaunchError
    from hearth.errors import LaunchTypeError as LaunchTypeError
    from hearth.errors import OutOfMemoryError as OutOfMemoryError
    from hearth.errors import QuotaExceededError as QuotaExceededError
    from hearth.errors import SessionExpiredError as SessionExpiredError
    from hearth.errors import TimeoutError as TimeoutError
    from hearth.errors import TransferError as TransferError
    from hearth.errors import UnavailableError as UnavailableError
    from hearth.errors import UnsupportedAttributeError as UnsupportedAttributeError
    from hearth.errors import UnsupportedError as UnsupportedError
    from hearth.errors import UnsupportedTypeError as UnsupportedTypeError
    from hearth.failure import Failure as Failure
    from hearth.graphs.base_graph import GraphNode as GraphNode
    from hearth.kernels.base_pending_dispatch import DispatchTiming as DispatchTiming
    from hearth.kernels.bindings import In as In
    from hearth.kernels.bindings import InOut as InOut
    from hearth.kernels.bindings import Out as Out
    from hearth.kernels.by_value import Struct as Struct
    from hearth.kernels.launch_attributes import AccessPolicyWindow as AccessPolicyWindow
    from hearth.kernels.launch_attributes import LaunchAttributes as LaunchAttributes
    from hearth.kernels.occupancy import Occupancy as Occupancy
    from hearth.kernels.pointers import pointer as pointer
    from hearth.profiling.base_trace import KernelActivity as KernelActivity
    from hearth.profiling.base_trace import TraceEvent as TraceEvent
    from hearth.progress import show_progress as show_progress
    from hearth.shapes import cdiv as cdiv
    from hearth.transfer.pinned import empty_like_pinned as empty_like_pinned
    from hearth.transfer.pinned import empty_pinned as empty_pinned
    from hearth.transfer.pinned import zeros_like_pinned as zeros_like_pinned
    from hearth.transfer.pinned import zeros_pinned as zeros_pinned
    from hearth.types import DeviceInfo as DeviceInfo
    from hearth.types import DeviceProperties as DeviceProperties
    from hearth.types import MemoryUsage as MemoryUsage
    from hearth.types import NodeInfo as NodeInfo
    from hearth.types import ProcessInfo as ProcessInfo
    from hearth.types import SessionInfo as SessionInfo

_HOMES = {
    "arrays.described": ("PublishedArray",),
    "kernels.pointers": ("pointer",),
    "arrays.read_only": ("read_only",),
    "arrays.tensor_map": ("Im2col", "Im2colWide", "TensorMap"),
    "blocking.array": ("DeviceArray",),
    "blocking.device": ("Device",),
    "blocking.dispatch": ("PendingDispatch",),
    "blocking.function": ("Function",),
    "blocking.graph": ("Graph", "Prepared"),
    "blocking.group": ("Group",),
    "blocking.module": ("RawModule",),
    "blocking.node": ("Node", "connect", "device"),
    "blocking.profile": ("Profile", "Trace"),
    "blocking.stream": ("Event", "Stream", "get_elapsed_time"),
    "collectives.flight_recorder": ("FlightRecord",),
    "collectives.reduction": ("premul_sum",),
    "endpoint.retry": ("retrying",),
    "errors": (
        "ArgumentError",
        "AuthenticationError",
        "BufferLostError",
        "CancelledError",
        "ClosedError",
        "CommunicatorError",
        "CompileError",
        "ConnectError",
        "DeviceLostError",
        "DtypeError",
        "HearthError",
        "InvalidHandleError",
        "LaunchError",
        "LaunchTypeError",
        "OutOfMemoryError",
        "QuotaExceededError",
        "SessionExpiredError",
        "TimeoutError",
        "TransferError",
        "UnavailableError",
        "UnsupportedAttributeError",
        "UnsupportedError",
        "UnsupportedTypeError",
    ),
    "failure": ("Failure",),
    "graphs.base_graph": ("GraphNode",),
    "kernels.base_pending_dispatch": ("DispatchTiming",),
    "kernels.bindings": ("In", "InOut", "Out"),
    "kernels.by_value": ("Struct",),
    "kernels.launch_attributes": ("AccessPolicyWindow", "LaunchAttributes"),
    "kernels.occupancy": ("Occupancy",),
    "profiling.base_trace": ("KernelActivity", "TraceEvent"),
    "progress": ("show_progress",),
    "shapes": ("cdiv",),
    "transfer.pinned": ("empty_like_pinned", "empty_pinned", "zeros_like_pinned", "zeros_pinned"),
    "types": ("DeviceInfo", "DeviceProperties", "MemoryUsage", "NodeInfo", "ProcessInfo", "SessionInfo"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AccessPolicyWindow",
    "ArgumentError",
    "AuthenticationError",
    "BufferLostError",
    "CancelledError",
    "ClosedError",
    "CommunicatorError",
    "CompileError",
    "ConnectError",
    "Device",
    "DeviceArray",
    "DeviceInfo",
    "DeviceLostError",
    "DeviceProperties",
    "DispatchTiming",
    "DtypeError",
    "Event",
    "Failure",
    "FlightRecord",
    "Function",
    "Graph",
    "GraphNode",
    "Group",
    "HearthError",
    "Im2col",
    "Im2colWide",
    "In",
    "InOut",
    "InvalidHandleError",
    "KernelActivity",
    "LaunchAttributes",
    "LaunchError",
    "LaunchTypeError",
    "MemoryUsage",
    "Node",
    "NodeInfo",
    "Occupancy",
    "Out",
    "OutOfMemoryError",
    "PendingDispatch",
    "Prepared",
    "ProcessInfo",
    "Profile",
    "PublishedArray",
    "QuotaExceededError",
    "RawModule",
    "SessionExpiredError",
    "SessionInfo",
    "Stream",
    "Struct",
    "TensorMap",
    "TimeoutError",
    "Trace",
    "TraceEvent",
    "TransferError",
    "UnavailableError",
    "UnsupportedAttributeError",
    "UnsupportedError",
    "UnsupportedTypeError",
    "__version__",
    "cdiv",
    "connect",
    "device",
    "empty_like_pinned",
    "empty_pinned",
    "get_elapsed_time",
    "premul_sum",
    "pointer",
    "read_only",
    "retrying",
    "show_progress",
    "zeros_like_pinned",
    "zeros_pinned",
]


if not TYPE_CHECKING:  # with it, type checkers would accept every attribute name

    def __getattr__(name: str) -> Any:
        if name == "aio":
            return importlib.import_module("hearth.aio")
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'hearth' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"hearth.{home}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
