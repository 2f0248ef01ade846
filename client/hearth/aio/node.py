"""`connect` and `Node` for asyncio."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from hearth import telemetry
from hearth.aio.awaited import AsyncWith
from hearth.aio.event_loop import Home
from hearth.base_node import BaseNode, open_node_session

if TYPE_CHECKING:
    from typing import Never, Self

    from hearth.aio.connection import LoopConnection
    from hearth.aio.device import Device
    from hearth.session.connection import Connection
    from hearth.session.lease import NodeSession
    from hearth.session.send_queue import Limits
    from hearth.transport.base import Transport
    from hearth.types import NodeInfo, SessionInfo
    from hearth_proto.v1 import node_pb2

T = TypeVar("T")


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
) -> Connecting:
    """Opens a session on a node's daemon: ``async with hearth.aio.connect(...) as node:``.

    Alternatively, ``node = await hearth.aio.connect(...)``, and later ``await node.close()``. The node belongs to the
    event loop in which the result is awaited. If the await is cancelled, no session remains: a session that was being
    opened is closed as soon as it is open.

    Args:
        target: Address of the daemon; see `hearth.connect`.
        timeout: Seconds for the connect, and later for the restart of a device after a loss. If no daemon answers, up
            to half a second is added, for the cause that the error names.
        name: Name of the session in the daemon's logs.
        token: Token of the caller; None: see `hearth.connect`.
        ca: PEM file with the authority of the daemon's certificate; None: see `hearth.connect`.
        certificate: PEM file with the caller's certificate, for TLS; None: HEARTH_CERTIFICATE.
        key: PEM file with the key of `certificate`; None: HEARTH_KEY.
        insecure: Allows a token to be sent to another host without TLS.
        isolation: ``"dedicated"`` asks for device processes that no other session shares; None: as configured.
        launch_timeout: Time limit in seconds of launches that have no timeout; 0: the daemon's default.
        lanes: Uses direct connections to the device processes if the daemon offers them.
        wait_for_ready: Tries again for `timeout` seconds in total while no daemon is ready. By default the first
            failure is raised immediately, except that of an overloaded daemon, which says when to try again.
        **unknown: No other keyword is accepted.

    Returns:
        The session being opened, to be awaited or entered by ``async with``.

    Raises:
        HearthError: When awaited, an error that `hearth.connect` raises.
    """
    if unknown:
        from hearth.keywords import unknown_keyword

        raise unknown_keyword("hearth.aio.connect", unknown, connect)
    return Connecting(
        partial(
            open_node_session, target, timeout, name, token, ca, certificate, key, insecure=insecure,
            isolation=isolation, launch_timeout=launch_timeout, lanes=lanes, wait_for_ready=wait_for_ready,
            meanwhile=_import_device_modules,
        )
    )  # fmt: skip


class Connecting:
    """A session that is being opened, returned by `connect`; to be awaited or entered once."""

    def __init__(self, open_session: Callable[..., NodeSession]) -> None:
        self._open_session = open_session
        self._node: Node | None = None

    def __await__(self) -> Generator[Any, None, Node]:
        return self._connect().__await__()

    async def __aenter__(self) -> Node:
        self._node = await self._connect()
        return self._node

    async def __aexit__(self, *_: object) -> None:
        assert self._node is not None
        await self._node.close()

    async def _connect(self) -> Node:
        home = Home(asyncio.get_running_loop())
        opening = partial(self._open_session, make_connection=partial(_make_connection, home))
        session = await home.call(opening, undo=lambda session: session.close())
        return Node(home, session)


def _make_connection(
    home: Home, transport: Transport, token: str, ordinal: int, limits: Limits, timeout: float, lease: float
) -> Connection:
    from hearth.aio.connection import LoopConnection  # imported while the daemon answers

    return LoopConnection(home, transport, token, ordinal, limits, timeout, lease)


def _import_device_modules() -> None:
    import hearth.aio.connection
    import hearth.aio.device  # noqa: F401


class Node(AsyncWith, BaseNode["Device"]):
    """The asyncio counterpart of `hearth.Node`: requests to the daemon are awaited.

    A node belongs to the event loop in which it was made. The session is closed by `close`, at the end of ``async
    with``, when the object is garbage-collected, or when Python exits.
    """

    def __init__(self, home: Home, session: NodeSession) -> None:
        super().__init__(session)
        self._home = home

    def device(self, ordinal: int = 0) -> Device:
        """Returns one device. Does not wait.

        Args:
            ordinal: Number of the device on the node, from 0.

        Returns:
            The device; the same object for every call while the program keeps a reference to it.

        Raises:
            ArgumentError: The node has no device of that number.
            ClosedError: The node is closed.
            UnsupportedError: The node belongs to another event loop.
        """
        self._home.check()
        return super().device(ordinal)

    def _make_device(self, connection: Connection, opened: node_pb2.Device) -> Device:
        from hearth.aio.device import Device

        return Device(self, cast("LoopConnection", connection), opened)

    @telemetry.traced("hearth.synchronize")
    async def synchronize(self, timeout: float | None = None) -> None:
        """Returns when all work of this session is done, on all its devices.

        Args:
            timeout: Seconds to wait at most for the answers of the devices; None: no limit.

        Raises:
            HearthError: The first failure on the first device that has one, as by `Device.synchronize`. Failures on
                other devices are raised by the next call that reports errors there.
            TimeoutError: The work is not done in time; it continues.
        """
        self._session.check()
        used = [device._connection for device in self.devices if device._connection.used]
        for connection in used:
            timeout = await connection.opened(timeout)
        await self._home.answers(self._request_sync(), timeout)

    async def describe(self) -> NodeInfo:
        """Describes the node: name, versions, features, and the present state of every device.

        Returns:
            The node's description.
        """
        return await self._home.call(self._describe)

    async def sessions(self) -> list[SessionInfo]:
        """Lists the sessions on the node that this session may see.

        Returns:
            The sessions of the caller's tenant; all sessions if the caller has the right to observe or administer.
        """
        return await self._home.call(self._list_sessions)

    async def status(self) -> dict[str, Any]:
        """Returns the document of the daemon's status page: see `hearth.Node.status`."""
        return await self._home.call(self._fetch_status)

    async def end_session(self, session_id: str) -> list[int]:
        """Ends a session of the caller's tenant; with the right to administer, a session of any tenant.

        Args:
            session_id: Public id of the session, as `sessions` lists it.

        Returns:
            The ordinals of devices on which a kernel of the session is still running; the session's memory on those
            devices is freed when the kernel ends. Empty if everything is freed.

        Raises:
            InvalidHandleError: There is no session of that id.
            AuthenticationError: The session belongs to another tenant, and the caller has no right to administer.
        """
        return await self._home.call(partial(self._end_session, session_id))

    async def restart_device(self, ordinal: int) -> None:
        """Replaces the processes of a device and lifts its fence. Arrays on the device are lost.

        Args:
            ordinal: Number of the device on the node, from 0.

        Raises:
            AuthenticationError: The caller has no right to administer.
        """
        await self._home.call(partial(self._restart_device, ordinal))

    async def drain(self) -> int:
        """Makes the daemon refuse new sessions; existing sessions continue.

        To wait for room in a queue, see `Device.ready`.

        Returns:
            The number of sessions that continue.

        Raises:
            AuthenticationError: The caller has no right to administer.
        """
        return await self._home.call(self._drain)

    @telemetry.traced("hearth.close")
    async def close(self) -> None:
        """Sends queued commands, ends the session and frees everything that it holds on the devices.

        If the await is cancelled, the close continues in the background.
        """
        self._home.check()
        closing = self._home.calls.run(self._close)
        await self._home.wait_done(closing)
        closing.result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
