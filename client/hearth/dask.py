"""Dask: every task works with the daemon of the node that it runs on.

Placing work over many nodes is the engine's; Hearth serves each of them. One session a worker, shared by its threads:

>>> from distributed import Client
>>> import hearth.dask
>>> client = Client("scheduler:8786")
>>> client.register_plugin(hearth.dask.HearthPlugin())
>>> def total(part):
...     gpu = hearth.dask.node().device(0)
...     return float(gpu.asarray(part).get().sum())
>>> client.submit(total, np.ones(4)).result()

Needs the package ``distributed``; nothing else of Hearth does.
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
    """Connects each worker when it is registered, or starts: where there is no daemon, that fails, and says where.

    `target`: as in `hearth.connect`, on the worker; ``"local"``, its own machine's daemon; None: the worker's
    HEARTH_TARGET. `options`: further keywords of `connect`.
    """

    name = NAME
    idempotent = True

    def __init__(self, target: str | None = "local", **options: Any) -> None:
        self._target = target
        self._options = options
        self._node: Node | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:  # to the workers, which have nodes of their own
        return _again, (type(self), self._target, self._options)

    async def setup(self, worker: Worker) -> None:
        """Connects. Raises what `hearth.connect` raises."""
        self._options.setdefault("name", f"dask {worker.address}")
        await asyncio.to_thread(self.node)

    async def teardown(self, worker: Worker) -> None:
        """Ends the session."""
        with self._lock:
            node, self._node = self._node, None
        if node is not None:
            await asyncio.to_thread(node.close)

    def node(self) -> Node:
        """The worker's session; another one where it has ended, with its daemon perhaps: what lay there is gone."""
        with self._lock:
            if self._node is not None and not _lives(self._node):
                self._node.close()
                self._node = None
            if self._node is None:
                self._node = connect(self._target, **self._options)
            return self._node


def node() -> Node:
    """Returns, in a task, the session of its worker. Raises `UnsupportedError` elsewhere, or where the plugin is not
    registered, and the errors of `hearth.connect`."""
    try:
        worker = get_worker()
    except ValueError:
        raise UnsupportedError(
            "hearth.dask.node() is for tasks on a Dask worker.", reason="UNSUPPORTED", fix="use hearth.connect() here."
        ) from None
    plugin = worker.plugins.get(NAME)
    if not isinstance(plugin, HearthPlugin):
        raise UnsupportedError(f"worker {worker.address} has no HearthPlugin.", reason="UNSUPPORTED", fix=_FIX)
    return plugin.node()


def _again(kind: type[HearthPlugin], target: str | None, options: dict[str, Any]) -> HearthPlugin:
    return kind(target, **options)


def _lives(node: Node) -> bool:
    """True if the session still exists; a broken connection does not count against it, since it may come back."""
    session = node._session
    request = node_pb2.RenewSessionRequest(session_token=session.token)
    try:
        session.call("RenewSession", request, node_pb2.RenewSessionResponse)
    except (SessionExpiredError, ClosedError):
        return False
    except HearthError:
        pass  # the task itself gets this error
    return True
