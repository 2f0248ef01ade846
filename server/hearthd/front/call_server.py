"""Calls that come as frames on a Unix socket beside gRPC's: the same handlers, the same rights, no gRPC in the client.

A new client has its session long before it would have loaded gRPC; see `hearth_proto.calls` for what it sends.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import grpc
import grpc.aio
import structlog

from hearth_proto import calls
from hearth_proto.reasons import Reason, Refusal
from hearthd.front.attach import EOF
from hearthd.front.auth import AUTHORIZATION, SESSION, TICKET
from hearthd.front.call_context import Aborted, FramedCall
from hearthd.front.listen import UnixSocket
from hearthd.front.refusals import malformed

log = structlog.get_logger("hearthd.calls")

_METHOD_WAIT = 2.0
"""Seconds in which METHOD has to come."""
_MOST_WAITING = 1024
_BACKLOG = 1024
_MAX_PATH = 107
_SHOWN = frozenset((AUTHORIZATION, SESSION, TICKET))


class _Details(NamedTuple):
    """grpc.HandlerCallDetails."""

    method: str
    invocation_metadata: calls.Metadata


class CallServer:
    """Of one daemon; belongs to the event loop."""

    def __init__(
        self, handlers: Sequence[grpc.GenericRpcHandler[Any, Any]], ticket: Callable[[socket.socket], str]
    ) -> None:
        """`ticket`: one that stands for the user at the other end of a socket; empty where none is needed."""
        self._handlers = handlers
        self._ticket = ticket
        self._socket: UnixSocket | None = None
        self._server: asyncio.AbstractServer | None = None
        self._waiting: dict[FramedCall, asyncio.TimerHandle] = {}
        self._calls: set[asyncio.Task[None]] = set()

    async def open(self, path: str, *, public: bool) -> None:
        """Listens. `public`: other users of the host may connect. Raises `ListenError`."""
        if len(os.fsencode(path)) > _MAX_PATH:
            log.warning("no_call_socket", path=path, why=f"a Unix socket's path has at most {_MAX_PATH} bytes")
            return
        place = UnixSocket(path, public=public)
        place.claim()
        before = os.umask(0o111 if public else 0o177)
        try:
            self._server = await asyncio.get_running_loop().create_unix_server(
                lambda: FramedCall(self._start, self._made), path, backlog=_BACKLOG
            )
        except OSError as error:
            place.release()
            raise place.unusable(error) from None
        finally:
            os.umask(before)
        self._socket = place

    async def close(self, grace: float) -> None:
        """No further calls; those under way have `grace` seconds."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for call in list(self._waiting):
            call.drop()
        if self._calls and grace:
            await asyncio.wait(self._calls, timeout=grace)
        while self._calls:
            for task in self._calls:
                task.cancel()
            await asyncio.gather(*self._calls, return_exceptions=True)
        if self._socket is not None:
            self._socket.release()
            self._socket = None

    # ---- one call ----

    def _made(self, call: FramedCall) -> bool:
        """Whether a connection is taken."""
        if len(self._waiting) >= _MOST_WAITING:
            for gone in [each for each in self._waiting if each.transport is None]:
                self._waiting.pop(gone).cancel()
        if len(self._waiting) >= _MOST_WAITING:
            return False
        self._waiting[call] = asyncio.get_running_loop().call_later(_METHOD_WAIT, self._overdue, call)
        return True

    def _overdue(self, call: FramedCall) -> None:
        self._waiting.pop(call, None)
        call.drop()

    def _start(self, call: FramedCall, head: bytes) -> None:
        """Its METHOD has come. Raises `FrameError`."""
        timer = self._waiting.pop(call, None)
        if timer is not None:
            timer.cancel()
        method, metadata = calls.unpack_head(head)
        if self._server is None or call.transport is None:
            call.drop()
            return
        call.metadata = metadata
        if not any(name in _SHOWN for name, _ in metadata):
            call.identify = partial(self._user, call.transport.get_extra_info("socket"))
        handler = self._find(method, call.metadata)
        if handler is None:
            call.end(_unknown(method).to_status())
            return
        call.decode, call.encode = handler.request_deserializer, handler.response_serializer
        call.task = asyncio.create_task(self._serve(call, handler, method), name=method)
        self._calls.add(call.task)
        call.task.add_done_callback(self._calls.discard)

    def _user(self, connection: socket.socket) -> calls.Metadata:
        try:
            ticket = self._ticket(connection)
        except OSError as error:
            log.warning("no_peer_credentials", why=error.strerror or str(error))
            return ()
        return ((TICKET, ticket),) if ticket else ()

    def _find(self, method: str, metadata: calls.Metadata) -> Any:
        details: Any = _Details(method, metadata)
        for handlers in self._handlers:
            handler: Any = handlers.service(details)
            if handler is not None:
                return handler
        return None

    async def _serve(self, call: FramedCall, handler: Any, method: str) -> None:
        context: Any = call
        try:
            request: Any = None
            if not handler.request_streaming:
                request = await call.read()
                if request is EOF:
                    raise malformed(f"{method} came without its request.", "Send one MESSAGE before END.")
            behaviour = (
                (handler.stream_stream if handler.request_streaming else handler.unary_stream)
                if handler.response_streaming
                else (handler.stream_unary if handler.request_streaming else handler.unary_unary)
            )
            answer = await behaviour(request, context)
            if not handler.response_streaming:
                await call.write(answer)
            call.end()
        except Aborted as aborted:
            aborted.__traceback__ = None
            call.end(aborted.status)
        except Refusal as refusal:
            call.end(refusal.to_status())
        except asyncio.CancelledError:
            call.drop()  # its client is gone, or the daemon is about to be
        except Exception:
            log.exception("call_failed", method=method)
            call.drop()
        finally:
            call.task = None


def _unknown(method: str) -> Refusal:
    return Refusal(
        Reason.UNSUPPORTED,
        f"There is no {method[:128]} here.",
        fix="Client and daemon are of different versions: see Describe.",
        details={"requested": method[:128]},
    )
