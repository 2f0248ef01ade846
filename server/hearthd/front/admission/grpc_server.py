"""The gRPC server, with its methods registered by path.

`grpc.aio` decodes the path of every call that is not registered as UTF-8 in its accept loop, and a path that is none
ends the loop and with it the server. Here each method has a separate accept loop, which needs no path, and one more
takes calls of unknown methods, without a look at it. Calls of all methods are accepted side by side.

Uses names of `grpc._cython.cygrpc` that are not public; where a version has other ones, methods are found as `grpc.aio`
finds them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import grpc
import grpc.aio
import structlog
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from hearth_proto.reasons import Reason, Refusal
from hearthd.front.admission.account import UnauthenticatedBytes
from hearthd.front.admission.gate import GatedService
from hearthd.front.admission.limits import MAX_STRANGER_BYTES
from hearthd.front.errors import Context, abort
from hearthd.shared.log import WithoutErrors

log = structlog.get_logger("hearthd.admission")

_aio: Any = grpc.aio
_core: Any = cygrpc
Options = Sequence[tuple[str, int]]
_UNDECODABLE = WithoutErrors(cygrpc.__name__, UnicodeDecodeError)
"""Metadata that is no UTF-8: the call is answered like any other without a credential, and counted."""


def options(largest: int) -> Options:
    """Returns the options that bound messages. `largest`: bytes of the longest one that any method takes."""
    return (
        ("grpc.max_receive_message_length", largest),
        # A call that was not asked for its message holds this much of it and no more: the window stays as it is, which
        # costs uploads over gRPC nothing on a local network; over long distances they go by stripes.
        ("grpc.http2.lookahead_bytes", MAX_STRANGER_BYTES),
        ("grpc.http2.bdp_probe", 0),
        # Compressed requests end with UNIMPLEMENTED before they are inflated; bit 0 stands for identity.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.per_message_decompression", 0),
    )


def make(
    services: Sequence[GatedService],
    account: UnauthenticatedBytes,
    channel_options: Options,
    admits: Callable[[str], bool] = lambda peer: True,
) -> grpc.aio.Server:
    """A server of these services that has not begun. `admits`: whether a call of a peer, by gRPC's name, is looked at;
    one that is not is dropped before Python has made objects of its metadata."""
    _UNDECODABLE.install()
    names = ("_request_call", "_request_registered_call", "_make_request_call_future", "add_registered_method_handlers")
    core = _core.AioServer
    known = all(hasattr(core, name) for name in names) and all(
        hasattr(_core, name) for name in ("_schedule_rpc_coro", "_ServicerContext")
    )
    if not known or "method_resolver" not in inspect.signature(_core._handle_rpc).parameters:
        log.warning("grpc_unprotected", version=grpc.__version__, why="its accept loop ends at a path that is no UTF-8")
        server: grpc.aio.Server = grpc.aio.server(options=channel_options)
        server.add_generic_rpc_handlers(services)
        return server
    server = _server(account, channel_options, admits)
    for service in services:
        server.add_registered_method_handlers(service.name, service.methods)  # type: ignore[attr-defined]
    return server


def _server(account: UnauthenticatedBytes, channel_options: Options, admits: Callable[[str], bool]) -> Any:
    base: Any = inspect.getmodule(grpc.aio.server)  # grpc.aio._server

    class Server(base.Server):  # type: ignore[misc]
        def __init__(self) -> None:
            self._loop = _core.get_working_loop()
            self._server = _accepting()(self._loop, None, (), (), tuple(channel_options), None)
            self._server.unknown = partial(_unknown, account)
            self._server.admits = admits

    return Server()


def _accepting() -> Any:
    """The class of the server's core, which exists where gRPC has the names."""

    class Accepting(_core.AioServer):  # type: ignore[misc]
        """Accepts in one loop a method. `unknown` answers calls of no method."""

        unknown: Callable[[Any, Context], Any]
        admits: Callable[[str], bool]

        def add_registered_method_handlers(self, method_handlers: dict[str, Any]) -> None:
            self.__dict__.setdefault("handlers", {}).update(method_handlers)
            super().add_registered_method_handlers(method_handlers)

        def _make_request_call_future(self, method_bytes: bytes | None) -> asyncio.Task[None]:
            """Returns the task that gRPC's own accept loop waits for: it ends with the server."""
            return asyncio.get_running_loop().create_task(self._accept(method_bytes))

        async def _accept(self, method: bytes | None) -> None:
            calls: set[asyncio.Task[None]] = self.__dict__.setdefault("calls", set())
            loop = asyncio.get_running_loop()
            if method is None:
                path, request = "?", self._request_call
                resolver = _Resolver(grpc.stream_unary_rpc_method_handler(self.unknown))
            else:
                path, request = method.decode(), partial(self._request_registered_call, method)
                resolver = _Resolver(self.__dict__["handlers"][path])
            while True:
                state = await request()
                if not self.admits(_core._ServicerContext(state, None, None, loop).peer()):
                    del state
                    continue
                call = _core._handle_rpc(path, resolver, (), state, loop, False)
                task = loop.create_task(_core._schedule_rpc_coro(call, state, loop, path), name="rpc_task")
                calls.add(task)
                task.add_done_callback(calls.discard)
                del state, call, task  # they must not outlive the call here

    return Accepting


class _Resolver:
    """Finds one handler for every call."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    def resolve_handler(self, _: Any) -> Any:
        return self._handler


async def _unknown(account: UnauthenticatedBytes, _: Any, context: Context) -> None:
    account.refused("unknown_method", context.peer(), "?")
    refusal = Refusal(
        Reason.UNSUPPORTED,
        "There is no such method here.",
        fix="Client and daemon are of different versions, or the address is another service's: see Describe.",
    )
    await abort(context, refusal.to_status())
