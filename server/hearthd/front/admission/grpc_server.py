"""The gRPC server, with its methods registered by path.

`grpc.aio` has an accept loop that decodes the path of every unregistered call as UTF-8. An invalid path ends that loop,
and with it the server. Here each method has a separate accept loop, which does not decode the path, and one more loop
accepts calls of unknown methods without examining their paths. The calls of all methods are accepted concurrently.

Uses names of `grpc._cython.cygrpc` that are not public. In a version without these names, methods are registered in the
way of `grpc.aio`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
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

_core: Any = cygrpc
Options = Sequence[tuple[str, int]]
_UNDECODABLE = WithoutErrors(cygrpc.__name__, UnicodeDecodeError)
"""Suppresses the log of metadata that is not UTF-8. Such a call is answered like any other without a credential, and
counted."""


def options(largest: int) -> Options:
    """Returns the options that limit messages. `largest`: maximum message size, in bytes, of all methods."""
    return (
        ("grpc.max_receive_message_length", largest),
        # gRPC holds at most this much of a call whose message was not requested. The window stays fixed, which does not
        # slow uploads over gRPC on a local network; over long distances uploads use stripes.
        ("grpc.http2.lookahead_bytes", MAX_STRANGER_BYTES),
        ("grpc.http2.bdp_probe", 0),
        # Compressed requests end with UNIMPLEMENTED before they are decompressed; bit 0 is the encoding `identity`.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.per_message_decompression", 0),
    )


def create(
    services: Sequence[GatedService],
    account: UnauthenticatedBytes,
    channel_options: Options,
    admits: Callable[[str], bool] = lambda peer: True,
) -> grpc.aio.Server:
    """Returns a server of these services that has not been started.

    `admits` returns whether a call of a peer (gRPC's name) may be processed; a call that may not is dropped before
    Python objects are created from its metadata.
    """
    _UNDECODABLE.install()
    names = ("_request_call", "_request_registered_call", "_make_request_call_future", "add_registered_method_handlers")
    core = _core.AioServer
    has_names = all(hasattr(core, name) for name in names) and all(
        hasattr(_core, name) for name in ("_schedule_rpc_coro", "_ServicerContext")
    )
    if not has_names or "method_resolver" not in inspect.signature(_core._handle_rpc).parameters:
        log.warning(
            "grpc_unprotected", version=grpc.__version__, why="its accept loop ends if a path is not valid UTF-8"
        )
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
            self._server = _accepting_core()(self._loop, None, (), (), tuple(channel_options), None)
            self._server.unknown = partial(_unknown, account)
            self._server.admits = admits

    return Server()


def _accepting_core() -> Any:
    """Returns the class of the server's core, which is defined late because it needs gRPC's internal names."""

    class Accepting(_core.AioServer):  # type: ignore[misc]
        """Accepts the calls of each method in a separate loop. `unknown` answers calls of unknown methods."""

        unknown: Callable[[Any, Context], Any]
        admits: Callable[[str], bool]

        def add_registered_method_handlers(self, method_handlers: dict[str, Any]) -> None:
            self.__dict__.setdefault("handlers", {}).update(method_handlers)
            super().add_registered_method_handlers(method_handlers)

        def _make_request_call_future(self, method_bytes: bytes | None) -> asyncio.Task[None]:
            """Returns the task for which gRPC's own accept loop waits. It ends with the server."""
            return asyncio.get_running_loop().create_task(self._accept(method_bytes))

        async def _accept(self, method: bytes | None) -> None:
            calls: set[asyncio.Task[None]] = self.__dict__.setdefault("calls", set())
            loop = asyncio.get_running_loop()
            if method is None:
                path, request = "?", self._request_call
                handler = grpc.stream_unary_rpc_method_handler(self.unknown)
            else:
                path, request = method.decode(), partial(self._request_registered_call, method)
                handler = self.__dict__["handlers"][path]
            resolver = SimpleNamespace(resolve_handler=lambda _: handler)
            while True:
                state = await request()
                if not self.admits(_core._ServicerContext(state, None, None, loop).peer()):
                    del state
                    continue
                call = _core._handle_rpc(path, resolver, (), state, loop, False)
                task = loop.create_task(_core._schedule_rpc_coro(call, state, loop, path), name="rpc_task")
                calls.add(task)
                task.add_done_callback(calls.discard)
                del state, call, task  # these objects must not outlive the call

    return Accepting


async def _unknown(account: UnauthenticatedBytes, _: Any, context: Context) -> None:
    account.refused("unknown_method", context.peer(), "?")
    refusal = Refusal(
        Reason.UNSUPPORTED,
        "This daemon does not have this method.",
        fix="Check that the address is the daemon's, and compare the versions of client and daemon "
        "(NodeService.Describe).",
    )
    await abort(context, refusal.to_status())
