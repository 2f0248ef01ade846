"""A session on a node: keeps its lease alive, closes it, and refuses its use in the child process of a fork.

A session outlives its `Node`: the finalizer, the threads and the fork hook refer to the session and never to the node,
so that the garbage collector closes the session of a node without references.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from hearth.codec import decode, encode
from hearth.errors import HearthError, closed
from hearth.session.connection import LEASE_S, Connection
from hearth.session.send_queue import Limits

if TYPE_CHECKING:
    from hearth.session.connection import Recorder
    from hearth.transport.base import Transport
    from hearth_proto.v1 import node_pb2

ConnectionFactory = Callable[["Transport", str, int, Limits, float, float], Connection]

_FEATURES = {
    "converts_integers": "integers",
    "premultiplies": "premul_sum",
    "struct_pointers": "struct_pointers",
    "composes_graphs": "graph_composition",
    "graph_memory": "graph_memory",
    "graph_conditionals": "graph_conditionals",
    "graph_branches": "graph_branches",
    "dispatch_options": "dispatch_options",
    "launch_attributes": "launch_attributes",
    "links": "linking",
    "publishes_events": "published_events",
}
"""Feature by which a daemon announces each ability in `Limits`."""
_SETTLE_S = 5.0
_CLOSE_S = 2.0
_sessions: weakref.WeakSet[NodeSession] = weakref.WeakSet()


class NodeSession:
    """A session on one node: its token, its limits, and one `Connection` for each device."""

    def __init__(
        self,
        transport: Transport,
        opened: node_pb2.OpenSessionResponse,
        timeout: float,
        make_connection: ConnectionFactory,
    ) -> None:
        """Creates the session of the response `opened`. `make_connection` creates the connection to each device."""
        self.transport = transport
        self.session_id = opened.session_id
        self.token = opened.session_token
        self.opened = opened
        self.timeout = timeout
        self.limits = _limits(opened.limits)._replace(
            **{ability: feature in opened.features for ability, feature in _FEATURES.items()}
        )
        self.pid = os.getpid()
        self.refusal: HearthError | None = None
        self.connections = {
            device.ordinal: make_connection(
                transport, self.token, device.ordinal, self.limits, timeout, opened.lease_ns / 1e9 or LEASE_S
            )
            for device in opened.devices
        }
        self.closed = False
        """True once `close` was called."""
        self._released = False
        """True once the session and its channels are closed."""
        self.recorder: Recorder | None = None
        """Recorder of the trace that the environment variable HEARTH_TRACE requests; None: no trace."""
        self._closing = threading.Lock()
        self._keeper: SimpleQueue[NodeSession | Callable[[], object] | None] = SimpleQueue()
        interval = opened.lease_ns / 3e9 or None
        threading.Thread(
            target=_run_keeper, args=(weakref.ref(self), self._keeper, interval), name="hearth-keeper", daemon=True
        ).start()
        _sessions.add(self)

    def call(self, method: str, request: Any, response_type: Any, timeout: float | None = None) -> Any:
        """Makes a unary call of NodeService.

        Args:
            method: Name of the method.
            request: Request message.
            response_type: Class of the answer.
            timeout: Longest wait in seconds; None: the timeout of `connect`.

        Raises:
            HearthError: The call failed, or the session is closed or belongs to the parent of a fork.
        """
        self.check()
        return self.transport.call(method, request, response_type, self.timeout if timeout is None else timeout)

    def check(self) -> None:
        """Raises the reason if the session cannot be used any more."""
        if self.refusal is not None:
            raise self.refusal.again()

    def close(self) -> None:
        """Sends queued commands, closes the session and its channels. A second call does nothing.

        An exception, such as KeyboardInterrupt, ends only the step that raises it; the last exception is raised.
        """
        if os.getpid() != self.pid:
            return  # a child process of a fork: the session belongs to the parent
        with self._closing:
            if self._released:
                return
            self.closed = True
            with ExitStack() as steps:  # in reverse order
                steps.callback(self._release)
                for connection in reversed(self.connections.values()):
                    steps.callback(connection.close, _SETTLE_S)
                steps.callback(self._refuse)
                if self.recorder is not None:
                    steps.callback(self.recorder.finish)

    def _refuse(self) -> None:
        self._keeper.put(None)
        self.refusal = self.refusal or closed()

    def _release(self) -> None:
        try:
            with suppress(HearthError):  # the daemon has ended, or it closes the session when the lease ends
                self.transport.call("CloseSession", encode.of_token(self.token), decode.Unread, _CLOSE_S)
        finally:
            self.transport.close()
            self._released = True

    def abandon(self) -> None:
        """Closes the session from the keeper thread.

        The caller is the garbage collector, which may have interrupted any code, including the holder of a lock that
        closing needs; `SimpleQueue.put` is reentrant.
        """
        self._keeper.put(self)

    def run_in_keeper(self, work: Callable[[], object]) -> None:
        """Runs the short function `work` in the keeper thread, or not at all if the session is closed.

        May be called by the garbage collector, like `abandon`.

        Args:
            work: Function without arguments, whose result is ignored.
        """
        self._keeper.put(work)

    def renew(self) -> None:
        """Renews the lease, unless an Execute stream keeps it alive."""
        if any(connection.attached for connection in self.connections.values()):
            return
        with suppress(HearthError):  # the next use of the session raises the error
            self.transport.call("RenewSession", encode.of_token(self.token), decode.Unread, self.timeout)

    def forked(self) -> None:
        """Refuses all use in the child process of a fork. Takes no lock."""
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


def _run_keeper(
    session: weakref.ref[NodeSession],
    tasks: SimpleQueue[NodeSession | Callable[[], object] | None],
    interval: float | None,
) -> None:
    """Runs the keeper thread: renews the lease every `interval` seconds, and runs the functions in `tasks`.

    Ends when the session is closed, abandoned (then it closes the session) or garbage-collected.
    """
    while True:
        try:
            task = tasks.get(timeout=interval)
        except Empty:
            node_session = session()
            if node_session is None:
                return
            node_session.renew()
            del node_session
            continue
        if isinstance(task, NodeSession):
            task.close()
        elif task is not None:
            task()
            del task  # it may refer to the session
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
