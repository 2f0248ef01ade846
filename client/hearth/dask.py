"""Dask plugin: every task uses the daemon of the node that it runs on.

Dask assigns work to nodes; Hearth serves each node. Each worker has one session, shared by its threads:

>>> from distributed import Client
>>> import hearth.dask
>>> client = Client("scheduler:8786")
>>> client.register_plugin(hearth.dask.HearthPlugin())
>>> def total(part):
...     gpu = hearth.dask.node().device(0)
...     return float(gpu.asarray(part).get().sum())
>>> client.submit(total, np.ones(4)).result()

Needs the package ``distributed``; no other module of Hearth does.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from distributed import get_worker
from distributed.diagnostics.plugin import WorkerPlugin

from hearth.blocking.node import connect
from hearth.errors import ClosedError, HearthError, SessionExpiredError, UnsupportedError
from hearth_proto.v1 import node_pb2

if TYPE_CHECKING:
    from distributed import Worker

    from hearth.blocking.node import Node

NAME = "hearth"
_FIX = "register it: client.register_plugin(hearth.dask.HearthPlugin())."


class HearthPlugin(WorkerPlugin):
    """Connects each Dask worker to a daemon when the plugin is registered or the worker starts.

    If no daemon answers, that fails with an error that names the address.

    Args:
        target: Address of the daemon as in `hearth.connect`, resolved on the worker; ``"local"``: the daemon of the
            worker's own machine; None: the worker's HEARTH_TARGET.
        **options: Further keywords of `hearth.connect`.
    """

    name = NAME
    idempotent = True

    def __init__(self, target: str | None = "local", **options: Any) -> None:
        self._target = target
        self._options = options
        self._node: Node | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:  # pickled to the workers: each worker opens a separate session
        return _make_plugin, (type(self), self._target, self._options)

    async def setup(self, worker: Worker) -> None:
        """Connects the worker; called by Dask.

        Args:
            worker: The Dask worker, whose address is used in the session's name.

        Raises:
            HearthError: An error that `hearth.connect` raises.
        """
        self._options.setdefault("name", f"dask {worker.address}")
        await asyncio.to_thread(self.node)

    async def teardown(self, worker: Worker) -> None:
        """Closes the worker's session; called by Dask.

        Args:
            worker: The Dask worker.
        """
        with self._lock:
            node, self._node = self._node, None
        if node is not None:
            await asyncio.to_thread(node.close)

    def node(self) -> Node:
        """Returns the worker's session.

        Opens a new one if the session has ended, for example with its daemon; arrays of the ended session are lost.
        Blocks for one request to the daemon.
        """
        with self._lock:
            if self._node is not None and not _exists(self._node):
                self._node.close()
                self._node = None
            if self._node is None:
                self._node = connect(self._target, **self._options)
            return self._node


def node() -> Node:
    """Returns the session of the worker that runs the calling task.

    Returns:
        The session, shared by all tasks of the worker.

    Raises:
        UnsupportedError: The caller is not a task on a Dask worker, or the plugin is not registered.
        HearthError: An error that `hearth.connect` raises.
    """
    try:
        worker = get_worker()
    except ValueError:
        raise UnsupportedError(
            "hearth.dask.node() can be used only in tasks on a Dask worker.",
            fix="use hearth.connect() here.",
        ) from None
    plugin = worker.plugins.get(NAME)
    if not isinstance(plugin, HearthPlugin):
        raise UnsupportedError(f"worker {worker.address} has no HearthPlugin.", fix=_FIX)
    return plugin.node()


def _make_plugin(kind: type[HearthPlugin], target: str | None, options: dict[str, Any]) -> HearthPlugin:
    return kind(target, **options)


def _exists(node: Node) -> bool:
    """Returns True if the session still exists. A broken connection counts as alive, because it may be restored."""
    session = node._session
    request = node_pb2.RenewSessionRequest(session_token=session.token)
    try:
        session.call("RenewSession", request, node_pb2.RenewSessionResponse)
    except (SessionExpiredError, ClosedError):
        return False
    except HearthError:
        pass  # the task itself gets this error
    return True
