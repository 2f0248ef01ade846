"""Abstract nodes: one session each, with the node's devices.

Covers everything that `hearth.Node` and `hearth.aio.Node` have in common: the opening of the session, state, and the
requests to the node's daemon. Does not cover calls that wait; each of the two node classes has its own.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from hearth.codec import timeouts
from hearth.endpoint import credentials
from hearth.endpoint import target as targets
from hearth.endpoint.open_session import open_session
from hearth.errors import ArgumentError, HearthError
from hearth_proto.later import node_pb2

if TYPE_CHECKING:
    from hearth.base_device import BaseDevice
    from hearth.session.connection import Connection
    from hearth.session.lease import ConnectionFactory, NodeSession
    from hearth.session.reply import Reply
    from hearth.types import NodeInfo, SessionInfo

D = TypeVar("D", bound="BaseDevice[Any, Any]")
"""The class of the node's devices."""

_MAX_LAUNCH_TIMEOUT_S = 365 * 86400.0


def open_node_session(
    target: str | None,
    timeout: float,
    name: str | None,
    token: str | None,
    ca: str | os.PathLike[str] | None,
    certificate: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
    *,
    insecure: bool,
    isolation: Literal["shared", "dedicated"] | None,
    launch_timeout: float,
    lanes: bool,
    wait_for_ready: bool,
    make_connection: ConnectionFactory,
    meanwhile: Callable[[], object],
) -> NodeSession:
    """Opens a session with the arguments of `hearth.connect`. Blocks until the session is open.

    Reads the environment variable ``HEARTH_TRACE``: if it names a file, the session is traced to that file.

    Args:
        target: Address of the daemon; None: the environment's HEARTH_TARGET, otherwise ``"local"``.
        timeout: Seconds for the connect; above 0.
        name: Name of the session in the daemon's logs.
        token: Token of the caller; None: from the environment.
        ca: PEM file with the authority of the daemon's certificate.
        certificate: PEM file with the caller's certificate.
        key: PEM file with the key of `certificate`.
        insecure: Allows a token to be sent to another host without TLS.
        isolation: ``"dedicated"``, ``"shared"``, or None: as the daemon is configured.
        launch_timeout: Time limit in seconds of launches that have no timeout, up to one year; 0: the daemon's default.
        lanes: Uses direct connections to the device processes if the daemon offers them.
        wait_for_ready: Repeats failed attempts for `timeout` seconds in total.
        make_connection: Makes the connection to each device.
        meanwhile: Imports the modules that devices need, while the daemon answers.

    Returns:
        The open session.

    Raises:
        ArgumentError: `timeout`, `launch_timeout` or `isolation` is out of range.
        HearthError: An error that `hearth.connect` raises.
    """
    timeouts.check(timeout)
    if not 0 <= launch_timeout <= _MAX_LAUNCH_TIMEOUT_S:
        raise ArgumentError(
            f"launch_timeout is {launch_timeout} s; it must be from 0 to {_MAX_LAUNCH_TIMEOUT_S:g}.",
            fix=f"pass seconds up to {_MAX_LAUNCH_TIMEOUT_S:g}; 0 selects the daemon's default.",
        )
    if isolation not in (None, "shared", "dedicated"):
        raise ArgumentError(
            f"isolation is {isolation!r}, which is not a kind of isolation.",
            fix='use "shared", "dedicated" or None.',
        )
    dedicated = None if isolation is None else isolation == "dedicated"

    def attempt(within: float | None = None) -> NodeSession:
        address = targets.resolve(target)  # for each attempt: a daemon that starts meanwhile creates its socket
        credential = credentials.find(address, token, ca, certificate, key, insecure=insecure)
        session = open_session(
            address, credential, timeout, name,
            dedicated=dedicated, launch_timeout=launch_timeout, lanes=lanes, within=within,
            make_connection=make_connection, meanwhile=meanwhile,
        )  # fmt: skip
        path = os.environ.get("HEARTH_TRACE")
        if path:
            _trace(session, path)
        return session

    if wait_for_ready:
        from hearth.endpoint.retry import retry_until

        return retry_until(attempt, timeout)
    try:
        return attempt()
    except HearthError as error:
        if error.reason != "OVERLOADED":  # an overloaded daemon says when to try again
            raise
        from hearth.endpoint.retry import retry_after_failure

        return retry_after_failure(error, attempt, timeout, ("OVERLOADED",))


def _trace(session: NodeSession, path: str) -> None:
    from hearth.profiling.auto_trace import follow

    try:
        session.recorder = follow(session, path)
    except BaseException:
        session.close()
        raise


class BaseNode(ABC, Generic[D]):
    """Abstract session on a node. The requests to the daemon block the calling thread."""

    def __init__(self, session: NodeSession) -> None:
        self._session = session
        self._devices: weakref.WeakValueDictionary[int, D] = weakref.WeakValueDictionary()
        self._finalizer = weakref.finalize(self, session.abandon)
        self._finalizer.atexit = False  # at exit the session's own handler closes it and waits

    @property
    def name(self) -> str:
        """The node's name: the name of its host."""
        return self._session.opened.node

    @property
    def session_id(self) -> str:
        """The public id of the session, which also appears in the daemon's logs."""
        return self._session.session_id

    @property
    def tenant(self) -> str:
        """The tenant of this client; ``"default"`` if the daemon does not authenticate."""
        return self._session.opened.tenant

    @property
    def isolation(self) -> str:
        """``"dedicated"`` if no other session shares the device processes, otherwise ``"shared"``."""
        dedicated = self._session.opened.isolation == node_pb2.ISOLATION_DEDICATED
        return "dedicated" if dedicated else "shared"

    @property
    def devices(self) -> list[D]:
        """All devices, by ordinal."""
        return [self.device(ordinal) for ordinal in sorted(self._session.connections)]

    @property
    def gpu(self) -> D:
        """The first device: ``node.device(0)``."""
        return self.device()

    def device(self, ordinal: int = 0) -> D:
        """Returns one device. Does not block.

        Args:
            ordinal: Number of the device on the node, from 0.

        Returns:
            The device; the same object for every call while the program keeps a reference to it.

        Raises:
            ArgumentError: The node has no device of that number.
            ClosedError: The node is closed.
        """
        self._session.check()
        connection = self._session.connections.get(ordinal)
        if connection is None:
            ordinals = sorted(self._session.connections)
            raise ArgumentError(
                f"node {self.name} has no device {ordinal}; it has {ordinals or 'none'}.",
                reason="DEVICE_NOT_FOUND",
                fix="check the devices with node.devices.",
            )
        device = self._devices.get(ordinal)
        if device is None:
            opened = next(entry for entry in self._session.opened.devices if entry.ordinal == ordinal)
            device = self._devices.setdefault(ordinal, self._make_device(connection, opened))
        return device

    @abstractmethod
    def _make_device(self, connection: Connection, opened: node_pb2.Device) -> D:
        """Makes a device of the class that belongs to this class of nodes."""

    @property
    def draining(self) -> bool:
        """True once the daemon has announced that it will stop.

        It then accepts no new sessions, and will end this session soon. The announcement arrives over the connection to
        a device, so the property is False before a device has been used. Unlike `describe`, it sends no request.
        """
        return any(connection.draining for connection in self._session.connections.values())

    @property
    def closed(self) -> bool:
        """True once the node has been closed."""
        return self._session.closed

    def on_output(self, callback: Callable[[str], object] | None) -> None:
        """Sets the callback for text that kernels print, on all devices: see `Device.on_output`.

        Args:
            callback: Called with the text; None: the text is written to ``sys.stdout``, the default.
        """
        for connection in self._session.connections.values():
            connection.kernel_output.callback = callback

    # ---- requests ----

    def _request_sync(self) -> list[Reply]:
        self._session.check()
        replies: list[Reply] = []
        try:
            replies += (device._request_sync() for device in self.devices if device._connection.used)
        except BaseException:
            for reply in replies:
                reply.abandon()
            raise
        return replies

    def _describe(self) -> NodeInfo:
        from hearth.types import NodeInfo

        return NodeInfo.of(self._session.call("Describe", node_pb2.DescribeRequest(), node_pb2.DescribeResponse))

    def _list_sessions(self) -> list[SessionInfo]:
        from hearth.types import SessionInfo

        listed = self._session.call("ListSessions", node_pb2.ListSessionsRequest(), node_pb2.ListSessionsResponse)
        return [SessionInfo.of(entry) for entry in listed.sessions]

    def _fetch_status(self) -> dict[str, Any]:
        answer = self._session.call("GetStatus", node_pb2.GetStatusRequest(), node_pb2.GetStatusResponse)
        import json

        document: dict[str, Any] = json.loads(answer.json)
        return document

    def _end_session(self, session_id: str) -> list[int]:
        request = node_pb2.EndSessionRequest(session_id=session_id)
        return list(self._session.call("EndSession", request, node_pb2.EndSessionResponse).running)

    def _restart_device(self, ordinal: int) -> None:
        request = node_pb2.RestartDeviceRequest(device=ordinal)
        self._session.call("RestartDevice", request, node_pb2.RestartDeviceResponse)

    def _drain(self) -> int:
        drained = self._session.call("Drain", node_pb2.DrainRequest(), node_pb2.DrainResponse)
        return int(drained.sessions)

    def _close(self) -> None:
        self._session.close()
        self._finalizer.detach()

    def _repr_html_(self) -> str:
        from hearth import html_repr

        state = "closed" if self.closed else "draining" if self.draining else f"session {self.session_id}"
        rows = [
            (
                entry.ordinal,
                entry.properties.name,
                entry.properties.backend,
                html_repr.size(entry.properties.total_memory),
                entry.properties.multiprocessor_count,
            )
            for entry in self._session.opened.devices
        ]
        title = f"Node {self.name} at {self._session.transport.target}: {state}"
        return html_repr.table(title, ("device", "name", "backend", "memory", "multiprocessors"), rows)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._session.connections)} devices"
        return f"<hearth.Node {self.name} at {self._session.transport.target}: {state}>"
