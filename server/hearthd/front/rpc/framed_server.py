"""Framed calls on a Unix socket, in addition to that of gRPC: the same handlers and rights, without gRPC in the client.

A client opens its session in less time than it takes to load gRPC. See `hearth_proto.calls` for the format.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from hearth_proto import calls
from hearth_proto.reasons import Reason, Refusal
from hearthd.front.admission.gate import AdmissionGate, GatedService, MethodGate
from hearthd.front.admission.limits import CredentialSource
from hearthd.front.auth.authenticator import AUTHORIZATION, SESSION, TICKET
from hearthd.front.connections.limiter import ConnectionLimiter
from hearthd.front.connections.peers import credentials_of, peer_of
from hearthd.front.rpc.framed_context import CallAborted, FramedCall
from hearthd.front.sessions.client_process import calling_process
from hearthd.front.sockets import MAX_PATH, UnixSocket

log = structlog.get_logger("hearthd.calls")

_METHOD_WAIT = 2.0
"""Time limit, in seconds, for METHOD to arrive."""
_BACKLOG = 1024
_OPERATIONS = frozenset(f"/hearth.v1.NodeService/{name}" for name in ("Drain", "EndSession", "RestartDevice"))
"""Methods of operators that are not run if the client has disconnected, because the client has reported a failure."""
_CREDENTIAL_KEYS = frozenset((AUTHORIZATION, SESSION, TICKET))


class CallServer:
    """The daemon's server of framed calls. Belongs to the event loop."""

    def __init__(
        self,
        services: Sequence[GatedService],
        ticket: Callable[[socket.socket], str],
        gate: AdmissionGate,
        limiter: ConnectionLimiter,
    ) -> None:
        """Creates the server.

        `ticket` returns a ticket for the user at the other end of a socket; empty if none is needed.
        """
        self._handlers = {
            f"/{service.name}/{method}": handler for service in services for method, handler in service.methods.items()
        }
        self._gate = gate
        self._ticket = ticket
        self._socket: UnixSocket | None = None
        self._server: asyncio.AbstractServer | None = None
        self._limiter = limiter
        self._awaiting_method: set[FramedCall] = set()
        """Connections whose METHOD has not arrived."""
        self._calls: set[asyncio.Task[None]] = set()

    async def open(self, path: str, *, public: bool) -> None:
        """Starts to listen. With `public`, other users of the host may connect. Raises `ListenError`."""
        if len(os.fsencode(path)) > MAX_PATH:
            log.warning("no_call_socket", path=path, why=f"a Unix socket's path has at most {MAX_PATH} bytes")
            return
        unix_socket = UnixSocket(path, public=public)
        unix_socket.claim()
        self._socket = unix_socket
        self._server = await asyncio.get_running_loop().create_unix_server(
            self._create_call, sock=unix_socket.listen(_BACKLOG), backlog=_BACKLOG
        )

    async def close(self, grace: float) -> None:
        """Accepts no further calls. Calls under way may continue for `grace` seconds."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for call in list(self._awaiting_method):
            call.drop()
        if self._calls and grace:
            await asyncio.wait(self._calls, timeout=grace)
        while self._calls:
            for task in self._calls:
                task.cancel()
            await asyncio.wait(self._calls)  # also lets callbacks run if all tasks are done
        if self._socket is not None:
            self._socket.release()
            self._socket = None

    # ---- one call ----

    def _create_call(self) -> FramedCall:
        return FramedCall(self._start, self._on_connected, self._gate.account, self._gate.limits.settings)

    def _on_connected(self, call: FramedCall) -> bool:
        """Returns True if the connection is accepted."""
        assert call.transport is not None
        peer = peer_of(call.transport.get_extra_info("socket"))
        call.slot = self._limiter.admit(peer, call.drop)
        if call.slot is None:
            return False
        call.slot.expect(_METHOD_WAIT)
        self._awaiting_method.add(call)
        call.on_lost = self._awaiting_method.discard
        return True

    def _start(self, call: FramedCall, head: bytes) -> None:
        """Starts a call whose METHOD has arrived. Raises `FrameError`."""
        self._awaiting_method.discard(call)
        if call.slot is not None:
            call.slot.expect()  # from now on the slot waits for an accepted credential
        method, metadata = calls.unpack_head(head)
        if self._server is None or call.transport is None:
            call.drop()
            return
        call.metadata = metadata
        with suppress(OSError):
            call.pid = credentials_of(call.transport.get_extra_info("socket"))[0]
        handler: Any = self._handlers.get(method)
        if handler is None:
            self._gate.account.refused("unknown_method", call.peer(), method)
            call.end(unknown_method(method).to_status())
            return
        behaviour = handler.stream_stream if handler.response_streaming else handler.stream_unary
        call.encode = handler.response_serializer
        self._admit(call, behaviour.method_gate)
        call.task = asyncio.create_task(
            self._serve(call, behaviour, method, sends_result=not handler.response_streaming), name=method
        )
        self._calls.add(call.task)
        call.task.add_done_callback(self._calls.discard)

    def _user_ticket(self, connection: socket.socket) -> calls.Metadata:
        try:
            ticket = self._ticket(connection)
        except OSError as error:
            log.warning("no_peer_credentials", why=error.strerror or str(error))
            return ()
        return ((TICKET, ticket),) if ticket else ()

    def _admit(self, call: FramedCall, method_gate: MethodGate) -> None:
        """Has the gate decide on the call, before any data after METHOD is examined."""
        has_credential = any(name in _CREDENTIAL_KEYS for name, _ in call.metadata)
        if not has_credential and method_gate.limit.credential in (CredentialSource.HEADERS, CredentialSource.LOGIN):
            assert call.transport is not None
            call.identify = partial(self._user_ticket, call.transport.get_extra_info("socket"))
        context: Any = call
        try:
            call.admit(self._gate.decide(method_gate, context), method_gate)
        except Refusal as refusal:
            refusal.__traceback__ = None
            call.admit(refusal, method_gate)

    async def _serve(self, call: FramedCall, behaviour: Any, method: str, *, sends_result: bool) -> None:
        """Runs the handler of a call. With `sends_result` the return value of `behaviour` is sent as the response."""
        calling_process.set(call.pid)
        try:
            if method in _OPERATIONS and _has_hung_up(call):
                call.drop()
                return
            answer = await behaviour(None, call)
            if sends_result:
                await call.write(answer)
            call.end()
        except CallAborted as aborted:
            aborted.__traceback__ = None
            call.end(aborted.status)
        except Refusal as refusal:
            refusal.__traceback__ = None  # the refusal may belong to the call itself, whose frames refer to the call
            call.end(refusal.to_status())
        except asyncio.CancelledError:
            call.drop()  # the client has disconnected, or the daemon stops
        except Exception:
            log.exception("call_failed", method=method)
            call.drop()
        finally:
            call.task = None


def _has_hung_up(call: FramedCall) -> bool:
    """Returns True if the client has closed the connection, even if asyncio has not read its end yet."""
    if call.transport is None:
        return True
    poll = select.poll()
    poll.register(call.transport.get_extra_info("socket").fileno(), 0)  # POLLHUP is always reported
    return bool(poll.poll(0))


def unknown_method(method: str) -> Refusal:
    """Returns the refusal of a method that no service has."""
    return Refusal(
        Reason.UNSUPPORTED,
        f"This daemon has no method {method[:128]}.",
        fix="Compare the versions of client and daemon (NodeService.Describe).",
        details={"requested": method[:128]},
    )
