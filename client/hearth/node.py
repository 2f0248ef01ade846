"""`connect` and `Node`: the way in."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from hearth import target as targets
from hearth.device import Device
from hearth.errors import ArgumentError
from hearth.node_session import NodeSession, open_session
from hearth.properties import DeviceInfo, NodeInfo, SessionInfo
from hearth_proto.v1 import node_pb2

if TYPE_CHECKING:
    from types import TracebackType


def connect(target: str | None = None, *, timeout: float = 10.0, name: str | None = None) -> Node:
    """Opens a session on a node's daemon.

    `target`: ``"host:7421"`` or ``"unix:/run/hearth/hearth.sock"``; else the environment's HEARTH_TARGET; else the
    usual Unix socket if it is there; else 127.0.0.1:7421. `timeout` in seconds, also for a device that comes back after
    a loss. `name` appears in the daemon's logs.

    Raises `ConnectError`, `AuthenticationError`, `UnsupportedError` for a protocol version that the daemon does not
    speak.
    """
    if timeout <= 0:
        raise ArgumentError(f"timeout is {timeout} s.", reason="INVALID_ARGUMENT", fix="give seconds above 0.")
    return Node(open_session(targets.resolve(target), timeout, name))


class Node:
    """A session on a node. Closed by `close`, at the end of ``with``, when collected, or when Python exits."""

    def __init__(self, session: NodeSession) -> None:
        self._session = session
        self._devices: weakref.WeakValueDictionary[int, Device] = weakref.WeakValueDictionary()
        self._finalizer = weakref.finalize(self, session.abandon)
        self._finalizer.atexit = False  # the session sees to that, and waits

    @property
    def name(self) -> str:
        """The host's name."""
        return self._session.opened.node

    @property
    def session_id(self) -> str:
        """The session's public id, as in the daemon's logs."""
        return self._session.session_id

    @property
    def devices(self) -> list[Device]:
        """All devices, by ordinal."""
        return [self.device(ordinal) for ordinal in sorted(self._session.connections)]

    def device(self, ordinal: int = 0) -> Device:
        """One device. Raises `ArgumentError` where the node has none of that number."""
        self._session.check()
        connection = self._session.connections.get(ordinal)
        if connection is None:
            known = sorted(self._session.connections)
            raise ArgumentError(
                f"node {self.name} has no device {ordinal}; it has {known or 'none'}.",
                reason="DEVICE_NOT_FOUND",
                fix="see node.devices.",
            )
        device = self._devices.get(ordinal)
        if device is None:
            info = next(entry for entry in self._session.opened.devices if entry.ordinal == ordinal)
            device = self._devices.setdefault(ordinal, Device(self, connection, DeviceInfo.of(info)))
        return device

    def on_output(self, callback: Callable[[str], object] | None) -> None:
        """As `Device.on_output`, for all devices."""
        for connection in self._session.connections.values():
            connection.prints.callback = callback

    def describe(self) -> NodeInfo:
        """Name, versions, features, and every device's present state."""
        return NodeInfo.of(self._session.call("Describe", node_pb2.DescribeRequest(), node_pb2.DescribeResponse))

    def sessions(self) -> list[SessionInfo]:
        """The sessions on the node that this one may see."""
        listed = self._session.call("ListSessions", node_pb2.ListSessionsRequest(), node_pb2.ListSessionsResponse)
        return [SessionInfo.of(entry) for entry in listed.sessions]

    def close(self) -> None:
        """Sends what is queued, ends the session and frees all that it holds on the devices."""
        self._session.close()
        self._finalizer.detach()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._session.closed

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._session.connections)} devices"
        return f"<hearth.Node {self.name} at {self._session.transport.target}: {state}>"
