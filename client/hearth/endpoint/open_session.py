"""Opening of a session: the request is sent before the modules that use its answer are imported.

The imports take about as long as the answer. Therefore this module imports only what the request needs; `meanwhile`
imports the rest.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import TYPE_CHECKING

from hearth.codec import decode, encode
from hearth.endpoint.credentials import bearer, of_session, opening
from hearth.errors import ArgumentError, HearthError, UnsupportedError
from hearth_proto import PROTOCOL_MAX, PROTOCOL_MIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth.codec.encode import Plain
    from hearth.endpoint.credentials import Credentials
    from hearth.endpoint.target import Target
    from hearth.session.lease import ConnectionFactory, NodeSession
    from hearth.transport.base import Answer, Transport
    from hearth_proto.v1 import node_pb2

    Opened = tuple[Transport, node_pb2.OpenSessionResponse]

_OPEN_TRIES = 3


def open_session(
    target: Target,
    credentials: Credentials,
    timeout: float,
    client_name: str | None,
    *,
    dedicated: bool | None = None,
    launch_timeout: float = 0.0,
    lanes: bool = True,
    within: float | None = None,
    make_connection: ConnectionFactory,
    meanwhile: Callable[[], object],
) -> NodeSession:
    """Connects and opens a session: with frames if the daemon accepts them, otherwise with gRPC. Blocks.

    Args:
        target: Address of the daemon.
        credentials: Credentials of the caller.
        timeout: Time limit in seconds that the session keeps for later calls.
        client_name: Name of the session in the daemon's logs; None: `default_name`.
        dedicated: Asks for dedicated (True) or shared (False) device processes; None: as the daemon is configured.
        launch_timeout: Time limit in seconds of launches that have no timeout; 0: the daemon's default.
        lanes: Uses direct connections to the device processes if the daemon offers them.
        within: Seconds for this attempt; None: `timeout`.
        make_connection: Makes the connection to each device; see `NodeSession`.
        meanwhile: Imports the modules that devices need, while the daemon answers.

    Returns:
        The session.

    Raises:
        ArgumentError: `client_name` is no valid text.
        ConnectError: No daemon answers; the error says what was tried.
        HearthError: The error that the daemon answered.
    """
    from hearth_proto import VERSION

    name = client_name or default_name()
    if not isinstance(name, str) or not encode.encodable(name):
        raise ArgumentError(
            f"name is {name!r}, which cannot be encoded as UTF-8.",
            fix="pass a str that can be encoded as UTF-8.",
        )
    request = encode.open_session(
        (PROTOCOL_MIN, PROTOCOL_MAX),
        VERSION,
        name,
        encode.ISOLATION[dedicated],
        int(launch_timeout * 1e9),
        process_name(),
    )
    within = timeout if within is None else within
    result = _by_frames(target, credentials, request, within, meanwhile) if lanes else None
    if result is None:
        result = _by_grpc(target, credentials, request, within, meanwhile)
    transport, opened = result
    from hearth.session.lease import NodeSession

    transport.lanes = transport.lanes and lanes
    transport.stripes = transport.stripes if lanes else 0
    transport.metadata = of_session(opened.session_token)
    transport.session_id = opened.session_id
    return NodeSession(transport, opened, timeout, make_connection)


def _by_frames(
    target: Target, credentials: Credentials, request: Plain, timeout: float, meanwhile: Callable[[], object]
) -> Opened | None:
    """Opens a session with frames.

    Returns None if the daemon does not accept frames or does not answer; gRPC is then tried, and can explain the
    failure. Raises the daemon's error.
    """
    if not target.unix_path:
        return None
    deadline = time.monotonic() + timeout
    transport = framed_transport(target)
    transport.metadata = bearer(credentials)
    try:
        return transport, wait_for_answer(
            transport.start_call("OpenSession", request, decode.Opened, timeout), meanwhile
        )
    except HearthError as error:
        if error.broken:
            return None
        raise _explained(error, transport, target, credentials, deadline) from None


def _by_grpc(
    target: Target, credentials: Credentials, request: Plain, timeout: float, meanwhile: Callable[[], object]
) -> Opened:
    from hearth_proto import grpc_import

    grpc_import.import_grpc(grpc_import.CLIENT)
    if _Grpc.inherited and os.environ.get(grpc_import.FORK_SUPPORT, "0").lower() in ("", "0", "false"):
        raise UnsupportedError(
            "this process was forked from one that had already connected; gRPC's threads do not survive a "
            "fork, and a new connection would hang.",
            fix="start the process with multiprocessing's spawn or forkserver method, or connect after the fork.",
        )
    _Grpc.used = True
    deadline = time.monotonic() + timeout
    transport = grpc_transport(target, credentials)
    for attempts_left in reversed(range(_OPEN_TRIES)):
        transport.metadata = opening(credentials, target)  # a ticket is valid for one call
        try:
            return transport, wait_for_answer(
                transport.start_call("OpenSession", request, decode.Opened, timeout), meanwhile
            )
        except HearthError as error:
            if error.broken and attempts_left:
                continue  # a session that was opened without a received answer ends with its lease
            raise _explained(error, transport, target, credentials, deadline) from None
    raise AssertionError("the last attempt returns or raises")


def framed_transport(target: Target) -> Transport:
    """Returns a new transport to a daemon at a Unix socket, over frames."""
    from hearth.transport.framed import FramedTransport

    return FramedTransport(target.address)


def grpc_transport(target: Target, credentials: Credentials) -> Transport:
    """Returns a new transport to a daemon over gRPC, whose channels use TLS if the target does."""
    from hearth.transport.grpc import GrpcTransport

    channel = credentials.channel() if target.tls else None
    return GrpcTransport(target.address, loopback=target.loopback, credentials=channel)


def _explained(
    error: HearthError, transport: Transport, target: Target, credentials: Credentials, deadline: float
) -> HearthError:
    from hearth.endpoint.diagnostics import explain

    transport.close()
    return explain(error, target, credentials, deadline)


def wait_for_answer(answer: Answer, meanwhile: Callable[[], object]) -> node_pb2.OpenSessionResponse:
    """Waits for the daemon's answer. An exception such as KeyboardInterrupt cancels the call.

    Args:
        answer: The call.
        meanwhile: Called before the wait.

    Returns:
        The daemon's answer.

    Raises:
        HearthError: The call failed.
    """
    try:
        meanwhile()
        import hearth.session.lease  # noqa: F401

        opened: node_pb2.OpenSessionResponse = answer.result()
    except BaseException:  # e.g. KeyboardInterrupt: no caller receives the answer
        answer.cancel()
        raise
    return opened


def default_name() -> str:
    """Returns the default name of a session for the daemon's logs: ``host:pid program``."""
    program = "python"
    if getattr(sys, "argv", None) and sys.argv[0]:
        program = os.path.basename(sys.argv[0])  # noqa: PTH119 - see `hearth.endpoint.target.is_socket`
    return f"{process_name()} {program}"


def process_name() -> str:
    """Returns host and pid of this process, ``host:pid``."""
    return f"{socket.gethostname()}:{os.getpid()}"


class _Grpc:
    """Records whether this process has used gRPC, and whether the process from which it was forked has."""

    used = False
    inherited = False


def _after_fork() -> None:
    _Grpc.inherited = _Grpc.inherited or _Grpc.used


os.register_at_fork(after_in_child=_after_fork)
