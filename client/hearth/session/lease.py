"""A session on a node: kept alive, closed, and refused in the child of a fork.

A session outlives `Node`: its finalizer, threads and fork hook refer to the session and never to the node, so that the
garbage collector closes a node without references.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from hearth.codec import decode, encode
from hearth.errors import HearthError
from hearth.session.attachment import closed
from hearth.session.connection import LEASE_S, Connection
from hearth.session.send_queue import Limits

if TYPE_CHECKING:
    from hearth.session.connection import Recorder
    from hearth.transport.base import Transport
    from hearth_proto.v1 import node_pb2

ConnectionFactory = Callable[["Transport", str, int, Limits, float, float], Connection]

_SETTLE_S = 5.0
_CLOSE_S = 2.0
_sessions: weakref.WeakSet[NodeSession] = weakref.WeakSet()


class NodeSession:
    """Token, limits, and one `Connection` for each device in use."""

    def __init__(
        self,
        transport: Transport,
        opened: node_pb2.OpenSessionResponse,
        timeout: float,
        make_connection: ConnectionFactory,
    ) -> None:
        """`make_connection` makes the connection to each device."""
        self.transport = transport
        self.session_id = opened.session_id
        self.token = opened.session_token
        self.opened = opened
        self.timeout = timeout
        self.limits = _limits(opened.limits)
        self.pid = os.getpid()
        self.refusal: HearthError | None = None
        self.connections = {
            device.ordinal: make_connection(
                transport, self.token, device.ordinal, self.limits, timeout, opened.lease_ns / 1e9 or LEASE_S
            )
            for device in opened.devices
        }
        self.closed = False
        self.recorder: Recorder | None = None
        """HEARTH_TRACE's."""
        self._closing = threading.Lock()
        self._keeper: SimpleQueue[NodeSession | Callable[[], object] | None] = SimpleQueue()
        interval = opened.lease_ns / 3e9 or None
        threading.Thread(
            target=_keep, args=(weakref.ref(self), self._keeper, interval), name="hearth-keeper", daemon=True
        ).start()
        _sessions.add(self)

    def call(self, method: str, request: Any, response_type: Any, timeout: float | None = None) -> Any:
        """Makes a unary call of NodeService; `timeout` in seconds, None: that of `connect`. Raises `HearthError`."""
        self.check()
        return self.transport.call(method, request, response_type, self.timeout if timeout is None else timeout)

    def check(self) -> None:
        """Raises where the session cannot be used any more."""
        if self.refusal is not None:
            raise self.refusal.again()

    def close(self) -> None:
        """Sends what is queued, closes the session and the channels. A second call does nothing."""
        if os.getpid() != self.pid:
            return  # the session is the parent's
        with self._closing:
            if self.closed:
                return
            self.closed = True
            if self.recorder is not None:
                self.recorder.finish()
            self._keeper.put(None)
            self.refusal = self.refusal or closed()
            for connection in self.connections.values():
                connection.close(_SETTLE_S)
            with suppress(HearthError):  # the daemon is gone, or closes it when the lease ends
                self.transport.call("CloseSession", encode.of_token(self.token), decode.Unread, _CLOSE_S)
            self.transport.close()

    def abandon(self) -> None:
        """Closes it from another thread: the garbage collector, which calls this, may have interrupted anything, also
        the holder of a lock that closing needs. `SimpleQueue.put` is made for that."""
        self._keeper.put(self)

    def later(self, work: Callable[[], object]) -> None:
        """Has another thread do something short, as `abandon` does; not at all once the session is closed."""
        self._keeper.put(work)

    def renew(self) -> None:
        """Prolongs the lease while no stream does."""
        if any(connection.attached for connection in self.connections.values()):
            return
        with suppress(HearthError):  # the next use says what is wrong
            self.transport.call("RenewSession", encode.of_token(self.token), decode.Unread, self.timeout)

    def forked(self) -> None:
        """Refuses all use in the child of a fork; takes no lock."""
        for connection in self.connections.values():
            connection.forked()
            self.refusal = connection.refusal


def _limits(message: node_pb2.SessionLimits) -> Limits:
    default = Limits()
    return Limits(
        message.max_inline_bytes or default.max_inline_bytes,
        message.max_chunk_bytes or default.max_chunk_bytes,
        message.max_batch_bytes or default.max_batch_bytes,
        message.max_batches_in_flight or default.max_batches_in_flight,
        message.max_code_bytes or default.max_code_bytes,
    )


def _keep(
    session: weakref.ref[NodeSession],
    orders: SimpleQueue[NodeSession | Callable[[], object] | None],
    interval: float | None,
) -> None:
    """Renews the lease until the session is closed, or closes it when it was abandoned; does what it is given."""
    while True:
        try:
            order = orders.get(timeout=interval)
        except Empty:
            alive = session()
            if alive is None:
                return
            alive.renew()
            del alive
            continue
        if isinstance(order, NodeSession):
            order.close()
        elif order is not None:
            order()
            del order  # it may hold the session
            continue
        return


def _at_exit() -> None:
    for session in list(_sessions):
        session.close()


def _after_fork() -> None:
    for session in list(_sessions):
        session.forked()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
