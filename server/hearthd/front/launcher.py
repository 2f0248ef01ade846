"""Starts device processes from a forkserver that has their imports loaded, and sees them end.

Starting blocks (a fork, and at first the forkserver's imports), so it runs in a thread of its own; one thread, because
`multiprocessing`'s bookkeeping is not made for several. The forkserver, its children and the resource tracker are all
gone when `stop` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerProcess
from typing import Any, Protocol

from hearth_proto import descriptors
from hearthd.entry import device_main
from hearthd.scratch import Scratch
from hearthd.spec import DeviceSpec

PRELOAD = ("hearthd.device.main",)
PRELOAD_OF = {"cuda": ("cupy", "hearthd.device.cuda.server"), "cpu": ("hearthd.device.cpu.server",)}
"""By backend. What is not imported there is imported by every device process for itself."""

_LINK_BUFFER = 2 << 20
"""Bytes a link's socket holds, as far as the system lets us: a chunk of a transfer and what goes with it."""


class DeviceProcess(Protocol):
    """A started device process."""

    @property
    def pid(self) -> int: ...

    @property
    def descriptors(self) -> socket.socket | None:
        """The socket beside the link, where open files are handed over."""

    @property
    def socket(self) -> socket.socket: ...

    def kill(self) -> None:
        """At once; harmless where it has ended."""

    def report(self) -> None:
        """Makes it write where its threads are to the log; harmless where it has ended."""

    async def ended(self) -> int | None:
        """Its exit code, negative for a signal, when it has ended; None where nobody knows."""


class Launcher(Protocol):
    """What the supervisor needs to get device processes."""

    async def launch(self, spec: DeviceSpec) -> DeviceProcess: ...

    async def stop(self) -> None: ...


class ForkServerLauncher:
    """Device processes as children of one forkserver."""

    def __init__(self, backend: str) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*PRELOAD, *PRELOAD_OF[backend]])
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="launcher")

    def warm_up(self) -> None:
        """Starts the forkserver, whose imports then run beside the front's own start."""
        _run_forkserver()

    async def launch(self, spec: DeviceSpec) -> DeviceProcess:
        """Starts one device process; returns before it is ready."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._start, spec)

    def _start(self, spec: DeviceSpec) -> _Child:
        _run_forkserver()  # another one, where it has ended
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in (ours, theirs):  # a chunk of a transfer at once, as far as the system lets us
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LINK_BUFFER)
        our_files, their_files = descriptors.pair()
        try:
            process = self._context.Process(
                target=device_main, args=(theirs, spec, their_files), name=f"hearthd-device-{spec.ordinal}"
            )
            process.start()
        except BaseException:
            ours.close()
            our_files.close()
            raise
        finally:
            theirs.close()
            their_files.close()
        return _Child(process, ours, our_files)

    async def stop(self) -> None:
        """Ends the forkserver and the resource tracker; device processes have ended before."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, _stop_servers)
        self._executor.shutdown(wait=True)


class _Child:
    def __init__(self, process: ForkServerProcess, link: socket.socket, files: socket.socket) -> None:
        self._process = process
        self.socket = link
        self.descriptors = files
        assert process.pid is not None
        self.pid: int = process.pid
        self._exit: asyncio.Future[int | None] | None = None

    def kill(self) -> None:
        if self._exit is None or not self._exit.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)

    def report(self) -> None:
        if self._exit is None or not self._exit.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGUSR1)  # written by a signal handler: it works in a thread that is stuck

    async def ended(self) -> int | None:
        loop = asyncio.get_running_loop()
        if self._exit is None:
            self._exit = loop.create_future()
            loop.add_reader(self._process.sentinel, self._on_exit, loop)
        return await asyncio.shield(self._exit)

    def _on_exit(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._process.sentinel)
        code = self._process.exitcode
        self._process.close()
        assert self._exit is not None
        if not self._exit.done():
            self._exit.set_result(None if code == _UNKNOWN else code)


_UNKNOWN = 255
"""What `multiprocessing` reports where the forkserver ended before its child."""


def _run_forkserver() -> None:
    """Starts the forkserver where none runs, and takes its socket out of the file system, where it would stay behind
    if this process were killed: the descriptor that is kept leads there as well."""
    resource_tracker.ensure_running()  # lets the signals through, so it has to come first
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_FRONT)
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    server: Any = forkserver._forkserver
    before = server._forkserver_pid, server._forkserver_address
    scratch = Scratch("hearth-forkserver-")
    config["tempdir"] = str(scratch.room())
    try:
        forkserver.ensure_running()
        if server._forkserver_pid != before[0]:
            _leave(before[1])
            place = os.open(server._forkserver_address, os.O_PATH | os.O_CLOEXEC)
            server._forkserver_address = f"{_BY_DESCRIPTOR}{place}"
    finally:
        config.pop("tempdir", None)
        scratch.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


_BY_DESCRIPTOR = "/proc/self/fd/"
_FOR_THE_FRONT = (signal.SIGINT, signal.SIGTERM)
"""A Ctrl-C in a terminal, and many a service manager, signals the whole process group: only the front shall act on it.
The forkserver inherits that they are blocked, and its children ignore them; all are told to end by the front. Blocked
and not ignored while the forkserver is started, so that a signal that comes just then is not lost."""


def _leave(address: str | None) -> None:
    """Lets go of the descriptor behind the address of a forkserver that has ended."""
    if address is not None and address.startswith(_BY_DESCRIPTOR):
        os.close(int(address.removeprefix(_BY_DESCRIPTOR)))


def _stop_servers() -> None:
    address = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]
    for owner, name in ((forkserver, "_forkserver"), (resource_tracker, "_resource_tracker")):
        server: Any = getattr(owner, name, None)
        stop = getattr(server, "_stop", None)
        if stop is not None:
            with contextlib.suppress(OSError, ValueError):
                stop()
    _leave(address)
    forkserver._forkserver._forkserver_address = None  # type: ignore[attr-defined]
