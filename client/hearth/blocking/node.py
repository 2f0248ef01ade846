"""`connect`, and nodes whose calls block the calling thread until the daemon has answered."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Literal

from hearth import telemetry
from hearth.base_node import BaseNode, open_node_session

if TYPE_CHECKING:
    from typing import Never

    from hearth.blocking.device import Device
    from hearth.session.connection import Connection
    from hearth.session.send_queue import Limits
    from hearth.transport.base import Transport
    from hearth.types import NodeInfo, SessionInfo
    from hearth_proto.v1 import node_pb2


@telemetry.traced("hearth.connect", telemetry.of_target, telemetry.of_node)
def connect(
    target: str | None = None,
    *,
    timeout: float = 10.0,
    name: str | None = None,
    token: str | None = None,
    ca: str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    isolation: Literal["shared", "dedicated"] | None = None,
    launch_timeout: float = 0.0,
    lanes: bool = True,
    wait_for_ready: bool = False,
    **unknown: Never,
) -> Node:
    """Opens a session on a node's daemon. Blocks until the session is open.

    Args:
        target: ``"host:7421"``, ``"https://host:7421"`` for TLS, ``"unix:/run/hearth/hearth.sock"``, or ``"local"``:
            this machine's daemon, at the usual Unix socket if that exists, otherwise at 127.0.0.1:7421. None: the
            environment's HEARTH_TARGET, otherwise ``"local"``.
        timeout: Seconds for the connect, and later for the restart of a device after a loss. If no daemon answers, up
            to half a second is added, for the cause that the error names.
        name: Name of the session in the daemon's logs.
        token: Token of the caller; None: HEARTH_TOKEN, otherwise the content of the file HEARTH_TOKEN_FILE. On a Unix
            socket without a token, the caller is identified as the user of this process.
        ca: PEM file with the authority of the daemon's certificate; None: HEARTH_CA, otherwise the public authorities.
        certificate: PEM file with the caller's certificate, for TLS; None: HEARTH_CERTIFICATE.
        key: PEM file with the key of `certificate`; None: HEARTH_KEY.
        insecure: Allows a token to be sent to another host without TLS.
        isolation: ``"dedicated"`` asks for device processes that no other session shares; None: as configured.
        launch_timeout: Time limit in seconds of launches that have no timeout; 0: the daemon's default.
        lanes: Uses direct connections to the device processes if the daemon offers them: for commands on the daemon's
            host, and for large arrays over TCP.
        wait_for_ready: As in gRPC: while no daemon answers, or the daemon is starting, draining or full, tries again
            for `timeout` seconds in total. By default the first failure is raised immediately, except that of an
            overloaded daemon, which says when to try again.
        **unknown: No other keyword is accepted.

    Returns:
        The node, to be closed or entered by ``with``.

    Raises:
        ConnectError: No daemon answers at `target`.
        AuthenticationError: The daemon does not accept the caller.
        QuotaExceededError: There are too many sessions.
        UnavailableError: The daemon is draining or overloaded.
        UnsupportedError: The daemon does not support this client's protocol version.
        ArgumentError: An argument is out of its range.
    """
    if unknown:
        from hearth.keywords import unknown_keyword

        raise unknown_keyword("hearth.connect", unknown, connect)
    return Node(
        open_node_session(
            target, timeout, name, token, ca, certificate, key, insecure=insecure, isolation=isolation,
            launch_timeout=launch_timeout, lanes=lanes, wait_for_ready=wait_for_ready, make_connection=_make_connection,
            meanwhile=_import_device_modules,
        )
    )  # fmt: skip


_defaults: dict[int, Node] = {}
"""The node of this process's default session, by process id, so that a forked process opens a session."""
_opening = threading.Lock()


def device(ordinal: int = 0) -> Device:
    """Returns a device of this process's default session.

    The first call opens the session, with the environment's settings (`connect` without arguments), and blocks until it
    is open. The session stays open until Python exits; after its node is closed, or in a forked process, the next call
    opens a new session.

    Args:
        ordinal: Number of the device on the node, from 0.

    Returns:
        The device.

    Raises:
        ArgumentError: The node has no device of that number.
        HearthError: An error that `connect` raises.
    """
    with _opening:
        node = _defaults.get(os.getpid())
        if node is None or node.closed:
            node = _defaults[os.getpid()] = connect()
        return node.device(ordinal)


def _make_connection(
    transport: Transport, token: str, ordinal: int, limits: Limits, timeout: float, lease: float
) -> Connection:
    from hearth.blocking.connection import BlockingConnection  # imported while the daemon answers

    return BlockingConnection(transport, token, ordinal, limits, timeout, lease)


def _import_device_modules() -> None:
    import hearth.blocking.connection
    import hearth.blocking.device  # noqa: F401


class Node(BaseNode["Device"]):
    """A session on a node. Made by `connect`. Safe from any thread.

    The session is closed by `close`, at the end of ``with``, when the object is garbage-collected, or when Python
    exits.
    """

    def _make_device(self, connection: Connection, opened: node_pb2.Device) -> Device:
        from hearth.blocking.device import Device

        return Device(self, connection, opened)

    @telemetry.traced("hearth.synchronize")
    def synchronize(self, timeout: float | None = None) -> None:
        """Blocks until all work of this session is done, on all its devices.

        Args:
            timeout: Seconds to wait at most; None: no limit.

        Raises:
            HearthError: The first failure on the first device that has one, as by `Device.synchronize`. Failures on
                other devices are raised by the next call that reports errors there.
            TimeoutError: The work is not done in time; it continues.
        """
        from hearth.session.reply import wait_for_all

        self._session.check()
        for device in self.devices:
            if device._connection.used:
                timeout = device._connection.opened(timeout, reports=True)
        wait_for_all(self._request_sync(), timeout)

    def describe(self) -> NodeInfo:
        """Describes the node: name, versions, features, and the present state of every device.

        Blocks for one request to the daemon.

        Returns:
            The node's description.
        """
        return self._describe()

    def sessions(self) -> list[SessionInfo]:
        """Lists the sessions on the node that this session may see.

        Blocks for one request to the daemon.

        Returns:
            The sessions of the caller's tenant; all sessions if the caller has the right to observe or administer.
        """
        return self._list_sessions()

    def status(self) -> dict[str, Any]:
        """Returns the document of the daemon's status page: devices, tenants, sessions, throughput and faults.

        Blocks for one request to the daemon. The document contains the parts of HTTP's ``/status`` that this client may
        see.
        """
        return self._fetch_status()

    def end_session(self, session_id: str) -> list[int]:
        """Ends a session of the caller's tenant; with the right to administer, a session of any tenant.

        Blocks for one request to the daemon.

        Args:
            session_id: Public id of the session, as `sessions` lists it.

        Returns:
            The ordinals of devices on which a kernel of the session is still running; the session's memory on those
            devices is freed when the kernel ends. Empty if everything is freed.

        Raises:
            InvalidHandleError: There is no session of that id.
            AuthenticationError: The session belongs to another tenant, and the caller has no right to administer.
        """
        return self._end_session(session_id)

    def restart_device(self, ordinal: int) -> None:
        """Replaces the processes of a device and lifts its fence. Arrays on the device are lost.

        Blocks for one request to the daemon.

        Args:
            ordinal: Number of the device on the node, from 0.

        Raises:
            AuthenticationError: The caller has no right to administer.
        """
        self._restart_device(ordinal)

    def drain(self) -> int:
        """Makes the daemon refuse new sessions; existing sessions continue.

        Blocks for one request to the daemon.

        Returns:
            The number of sessions that continue.

        Raises:
            AuthenticationError: The caller has no right to administer.
        """
        return self._drain()

    @telemetry.traced("hearth.close")
    def close(self) -> None:
        """Sends queued commands, ends the session and frees everything that it holds on the devices.

        Blocks for a few seconds at most. A second call does nothing.
        """
        self._close()

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
