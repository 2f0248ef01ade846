"""A proxy between client and daemon that cuts connections, after a number of bytes in one direction or on demand, or
stops forwarding without an error."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

_PIECE = 64 << 10
_RESET = struct.pack("ii", 1, 0)


class Budget(NamedTuple):
    """Number of bytes that a connection carries in each direction before it is cut; None: no limit."""

    up: int | None = None
    down: int | None = None
    reset: bool = False
    """True to cut by RST, which may discard bytes in flight, instead of by an orderly end."""


Plan = Callable[[int], Budget]
"""Function that returns the budget of connection number n, counted from 0."""


def random_cuts(seed: int, max_bytes: int) -> Plan:
    """Returns a plan that cuts every connection, in one direction, after a random number of bytes of any magnitude up
    to `max_bytes`. One connection in four is cut during its set-up."""
    drawn = random.Random(seed)

    def plan(_: int) -> Budget:
        bytes_left = (
            drawn.randrange(1000) if drawn.random() < 1 / 4 else int(1000 * (max_bytes / 1000) ** drawn.random())
        )
        reset = drawn.random() < 0.5
        return Budget(up=bytes_left, reset=reset) if drawn.random() < 0.5 else Budget(down=bytes_left, reset=reset)

    return plan


class _Pair:
    """A proxied connection: the client's socket and the daemon's socket."""

    def __init__(self, client: socket.socket, daemon: socket.socket, budget: Budget) -> None:
        self.client = client
        self.daemon = daemon
        self.budget = budget
        self.tasks: list[asyncio.Task[None]] = []

    def close(self, reset: bool) -> None:
        for end in (self.client, self.daemon):
            loop = asyncio.get_event_loop()
            loop.remove_reader(end)
            loop.remove_writer(end)
            if reset and end.family == socket.AF_INET:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.close()


class Cutter:
    """Listens on a separate TCP port; `target` is a Unix socket (``unix:<path>``) or ``host:port``."""

    def __init__(self, target: str, plan: Plan = lambda number: Budget()) -> None:
        self.plan = plan
        self.connections = 0
        self.cuts = 0
        self.up = 0
        """Number of bytes forwarded to the daemon."""
        self.down = 0
        self._target = target
        self._refuses = False
        self._pairs: set[_Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._flows.set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.setblocking(False)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, name="cutter", daemon=True)

    # ---- called from the test's thread ----

    def cut(self, reset: bool = False) -> None:
        """Ends every connection now."""
        self._call(self._cut_all(reset))

    def stall(self) -> None:
        """Stops forwarding on existing connections, without an error to either side; new ones work."""
        self._call(self._stall())

    def refuse(self, refuses: bool = True) -> None:
        """Sets whether new connections are closed immediately."""
        self._refuses = refuses

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def __enter__(self) -> Cutter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    # ---- runs in the proxy's thread ----

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._start(self._accept())
        self._loop.run_forever()
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        for pair in self._pairs:
            pair.close(False)
        self._listener.close()
        self._loop.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self) -> None:
        while True:
            client, _ = await self._loop.sock_accept(self._listener)
            client.setblocking(False)
            if self._refuses:
                client.close()
                continue
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._start(self._connect(client, self.plan(self.connections)))
            self.connections += 1

    async def _connect(self, client: socket.socket, budget: Budget) -> None:
        path = self._target.removeprefix("unix:")
        over_unix = path != self._target
        daemon = socket.socket(socket.AF_UNIX if over_unix else socket.AF_INET)
        daemon.setblocking(False)
        host, _, port = path.rpartition(":")
        try:
            await self._loop.sock_connect(daemon, path if over_unix else (host, int(port)))
        except OSError:
            client.close()
            daemon.close()
            return
        pair = _Pair(client, daemon, budget)
        self._pairs.add(pair)
        flows = self._flows
        pair.tasks = [
            self._start(self._forward(pair, client, daemon, budget.up, flows, up=True)),
            self._start(self._forward(pair, daemon, client, budget.down, flows, up=False)),
        ]

    async def _forward(
        self, pair: _Pair, source: socket.socket, sink: socket.socket, left: int | None, flows: asyncio.Event, up: bool
    ) -> None:
        try:
            while left is None or left > 0:
                data = await self._loop.sock_recv(source, _PIECE if left is None else min(_PIECE, left))
                await flows.wait()
                if not data:
                    break
                await self._loop.sock_sendall(sink, data)
                if up:
                    self.up += len(data)
                else:
                    self.down += len(data)
                if left is not None:
                    left -= len(data)
        except OSError:
            pass
        self._end(pair, pair.budget.reset and left == 0, cut=left == 0)

    def _end(self, pair: _Pair, reset: bool, cut: bool) -> None:
        if pair in self._pairs:
            self._pairs.discard(pair)
            self.cuts += cut
            for task in pair.tasks:
                if task is not asyncio.current_task():
                    task.cancel()
            pair.close(reset)

    async def _cut_all(self, reset: bool) -> None:
        for pair in list(self._pairs):
            self._end(pair, reset, cut=True)

    async def _stall(self) -> None:
        self._flows.clear()
        self._flows = asyncio.Event()
        self._flows.set()
