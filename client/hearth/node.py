"""`connect`, and nodes whose answers are waited for by the calling thread."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from hearth import telemetry
from hearth.base_node import BaseNode
from hearth.endpoint import credentials
from hearth.endpoint import target as targets
from hearth.endpoint.open_session import open_session
from hearth.errors import ArgumentError, HearthError
from hearth_proto.later import node_pb2

if TYPE_CHECKING:
    from types import TracebackType

    from hearth.device import Device
    from hearth.session.connection import Connection
    from hearth.session.lease import ConnectionFactory, NodeSession
    from hearth.types import NodeInfo, SessionInfo

_LONGEST_LAUNCH_S = 365 * 86400.0


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
) -> Node:
    """Opens a session on a node's daemon.

    `target`: ``"host:7421"``, ``"https://host:7421"`` for TLS, or ``"unix:/run/hearth/hearth.sock"``; ``"local"``: this
    machine's daemon, at the usual Unix socket if that is there, else at 127.0.0.1:7421. None: the environment's
    HEARTH_TARGET, else ``"local"``. `timeout` in seconds, also for a device that comes back after a loss. `name`
    appears in the daemon's logs.

    Who the caller is: `token` (else HEARTH_TOKEN, else what stands in the file HEARTH_TOKEN_FILE); over TLS also
    `certificate` and `key`, PEM files (else HEARTH_CERTIFICATE and HEARTH_KEY); on a Unix socket, without a token, this
    process's user. `ca`, a PEM file (else HEARTH_CA), has the authority of the daemon's certificate, where that is not
    a public one. A token is not sent to another host without TLS, unless `insecure` allows it.

    ``isolation="dedicated"`` asks for device processes that no other session shares. `launch_timeout`, in seconds,
    limits launches that have no limit of their own; 0: the daemon's default. `lanes`: whether work goes straight to the
    device processes where the daemon, on this host and reached over its Unix socket, offers that; and, over TCP, large
    arrays, by connections of their own.

    `wait_for_ready`, as in gRPC: where no daemon answers, or one that is starting, draining or full, tries again for
    `timeout` seconds in all before it raises that; without it at once.

    Raises `ConnectError`; `AuthenticationError`; `QuotaExceededError` where there are too many sessions;
    `UnsupportedError` for a protocol version that the daemon does not speak.
    """
    return Node(
        session_of(
            target, timeout, name, token, ca, certificate, key, insecure=insecure, isolation=isolation,
            launch_timeout=launch_timeout, lanes=lanes, wait_for_ready=wait_for_ready,
        )
    )  # fmt: skip


def session_of(
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
    make_connection: ConnectionFactory | None = None,
) -> NodeSession:
    """A session, opened as `connect` says; `make_connection`: see `NodeSession`."""
    if timeout <= 0:
        raise ArgumentError(f"timeout is {timeout} s.", reason="INVALID_ARGUMENT", fix="give seconds above 0.")
    if not 0 <= launch_timeout <= _LONGEST_LAUNCH_S:
        raise ArgumentError(
            f"launch_timeout is {launch_timeout} s.",
            reason="INVALID_ARGUMENT",
            fix=f"give seconds up to {_LONGEST_LAUNCH_S:g}; 0 is the daemon's default.",
        )
    if isolation not in (None, "shared", "dedicated"):
        raise ArgumentError(
            f"isolation is {isolation!r}.", reason="INVALID_ARGUMENT", fix='use "shared", "dedicated" or None.'
        )
    dedicated = None if isolation is None else isolation == "dedicated"

    def attempt(within: float | None = None) -> NodeSession:
        found = targets.resolve(target)  # each time: a daemon that starts makes its socket
        shown = credentials.find(found, token, ca, certificate, key, insecure=insecure)
        session = open_session(
            found, shown, timeout, name,
            dedicated=dedicated, launch_timeout=launch_timeout, lanes=lanes, within=within,
            make_connection=make_connection, meanwhile=_import_device,
        )  # fmt: skip
        path = os.environ.get("HEARTH_TRACE")
        if path:
            _trace(session, path)
        return session

    if wait_for_ready:
        from hearth.endpoint.retry import persist

        return persist(attempt, timeout)
    try:
        return attempt()
    except HearthError as error:
        if error.reason != "OVERLOADED":  # a daemon that is overloaded says when to come again
            raise
        from hearth.endpoint.retry import persist_after

        return persist_after(error, attempt, timeout, ("OVERLOADED",))


def _import_device() -> None:
    import hearth.device  # noqa: F401


def _trace(session: NodeSession, path: str) -> None:
    from hearth.profiling.auto_trace import follow

    try:
        session.recorder = follow(session, path)
    except BaseException:
        session.close()
        raise


class Node(BaseNode["Device"]):
    """A session on a node. Closed by `close`, at the end of ``with``, when collected, or when Python exits."""

    def _make_device(self, connection: Connection, opened: node_pb2.Device) -> Device:
        from hearth.device import Device

        return Device(self, connection, opened)

    @telemetry.traced("hearth.synchronize")
    def synchronize(self, timeout: float | None = None) -> None:
        """Waits until all work of this session is done, on all its devices at once; `timeout` in seconds.

        Raises as `Device.synchronize`: for several devices what failed on the first of them. What failed on others is
        raised when they are asked next.
        """
        from hearth.session.reply import wait_for_all

        wait_for_all(self._synchronizing(), timeout)

    def describe(self) -> NodeInfo:
        """Name, versions, features, and every device's present state."""
        return self._describe()

    def sessions(self) -> list[SessionInfo]:
        """The sessions on the node that this one may see."""
        return self._list_sessions()

    def status(self) -> dict[str, Any]:
        """What the daemon's page shows: devices, tenants, sessions, throughput, faults, as far as this client may see
        them. The document of HTTP's ``/status``."""
        return self._fetch_status()

    def end_session(self, session_id: str) -> list[int]:
        """Ends a session: one of the tenant's own, or, with the right to administer, anybody's. Raises
        `InvalidHandleError` where there is none of that id.

        Returns the ordinals of devices on which a kernel of it still runs, beside the work of others: what it held is
        free there when that kernel has ended, or the last of them has gone. Empty where all is free."""
        return self._end_session(session_id)

    def restart_device(self, ordinal: int) -> None:
        """Replaces a device's processes and lifts its fence; arrays on it are lost. Raises `AuthenticationError`
        without the right to administer."""
        self._restart_device(ordinal)

    def drain(self) -> int:
        """Has the daemon refuse new sessions; how many go on. Raises `AuthenticationError` without the right to
        administer."""
        return self._drain()

    @telemetry.traced("hearth.close")
    def close(self) -> None:
        """Sends what is queued, ends the session and frees all that it holds on the devices."""
        self._close()

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
