"""Server reflection, imported when somebody asks for it: it costs the front four megabytes, and most daemons are never
asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import grpc

NAME = "grpc.reflection.v1alpha.ServerReflection"


class Reflection(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """The service. `services`: the names that it lists beside its own."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = (*services, NAME)
        self._handlers: list[Any] = []

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a call that is one of its own."""
        if not handler_call_details.method.startswith(f"/{NAME}/"):
            return None
        if not self._handlers:
            from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

            package: Any = reflection
            servicer = package.aio.ReflectionServicer(self._services)
            reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, self)
        return next(filter(None, (each.service(handler_call_details) for each in self._handlers)), None)

    # ---- what the package takes for a server ----

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        """Called by the package, with what it would register."""
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """The same for servers that look methods up by themselves."""
