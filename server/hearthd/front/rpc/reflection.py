"""Server reflection, versions v1 and v1alpha.

The implementation is imported at its first use, because it costs the front four megabytes and is rarely used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc

from hearthd.front.admission.gate import AdmissionGate, GatedService
from hearthd.front.errors import Context
from hearthd.front.rpc.server_call import CallObserver, RequestStream, guarded, serialize

NAMES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""The service in both versions. Their messages differ in the package only, so that one implementation serves both."""
_METHOD = "ServerReflectionInfo"


class Reflection:
    """The reflection service, for callers with a credential."""

    def __init__(self, services: Iterable[str], gate: AdmissionGate, observer: CallObserver) -> None:
        """Creates the service. `services`: the names that it lists in addition to its own."""
        self._services = tuple(services)
        self._gate = gate
        self._observer = observer
        self._servicer: Any = None

    def handlers(self) -> list[GatedService]:
        """Returns the services for the gRPC server to register, one for each version."""
        return [self._handler(name) for name in NAMES]

    def _handler(self, name: str) -> GatedService:
        guard = guarded(self._gate.method_gate(name, _METHOD), self._info, self._observer)
        handler = grpc.stream_stream_rpc_method_handler(guard, response_serializer=serialize)
        return self._gate.service(name, {_METHOD: handler})

    async def _info(self, first: bytes | None, context: Context) -> None:
        from grpc_reflection.v1alpha import reflection, reflection_pb2

        from hearthd.front.rpc.reflection_pool import build_pool

        if self._servicer is None:
            package: Any = reflection
            names = (*self._services, *NAMES)
            self._servicer = package.aio.ReflectionServicer(names, build_pool(self._services))
        request: Any = reflection_pb2
        requests = _requests(first, RequestStream(context), request.ServerReflectionRequest.FromString)
        async for response in self._servicer.ServerReflectionInfo(requests, context):
            await context.write(response)


async def _requests(first: bytes | None, messages: RequestStream, decode: Any) -> AsyncIterator[Any]:
    if first is not None:
        yield decode(first)
        async for message in messages:
            yield decode(message)
