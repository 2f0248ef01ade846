"""The generated protobuf modules, each imported at its first use.

Importing protobuf's runtime and these modules takes as long as all other work of a new client before its first result,
which does not need them: see `hearth.codec.encode` of the client.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

__all__ = ["are_loaded", "commands_pb2", "device_pb2", "node_pb2", "status_pb2"]

if TYPE_CHECKING:
    from hearth_proto.v1 import commands_pb2, device_pb2, node_pb2, status_pb2
else:

    class _LazyModule:
        """Proxy of a module, which is imported at its first use.

        Thread-safe: imports are thread-safe, and every thread finds the same attributes.
        """

        def __init__(self, module: str) -> None:
            self._module = module

        def __getattr__(self, name: str) -> Any:
            value = getattr(importlib.import_module(self._module), name)
            setattr(self, name, value)  # later accesses bypass `__getattr__`
            return value

    commands_pb2 = _LazyModule("hearth_proto.v1.commands_pb2")
    device_pb2 = _LazyModule("hearth_proto.v1.device_pb2")
    node_pb2 = _LazyModule("hearth_proto.v1.node_pb2")
    status_pb2 = _LazyModule("hearth_proto.v1.status_pb2")


def are_loaded() -> bool:
    """Returns True if protobuf's runtime has been imported, by any module."""
    return "google.protobuf.descriptor" in sys.modules
