"""Starts device processes from a forkserver that has their imports loaded, and sees them end.

Starting blocks (a fork, and at first the forkserver's imports), so it runs in a separate thread; one thread, because
`multiprocessing`'s bookkeeping is not made for several. The forkserver, its children and the resource tracker are all
gone when `stop` returns.

Device processes do not depend on the forkserver: one that ends costs nothing but the start of another, which begins at
once. Its children become the front's, which takes orphans in (`daemon.orphans`) and waits for them by their pidfd.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Protocol

import structlog

from hearth_proto import descriptors
from hearthd.entry import device_main
from hearthd.front.supervisor import forkserver
from hearthd.shared.device_spec import DeviceSpec

log = structlog.get_logger("hearthd.supervisor")

_LINK_BUFFER = 2 << 20
"""Bytes a link's socket holds, as far as the system lets us: a chunk of a transfer and what goes with it."""
_TRIES = 3
"""Starts of one device process, where the forkserver ends under it."""
_LOOK_S = 0.25
"""Seconds between two checks of a forkserver that has been asked for a process; one that is stopped at two of them is
replaced."""
_START_S = 60.0
"""Seconds that a start may take, the forkserver's own imports included; it is replaced after that."""
_GONE_S = 1.0
"""Seconds that a forkserver which has failed to start a process gets to be seen ending."""
_STATUS_S = 0.5
"""Seconds that the forkserver has to hand on the exit code of a process that has ended."""
_CALM_S = 60.0
"""Seconds after which a forkserver that ends is replaced at once; others with a delay that doubles."""
_MOST_DELAY_S = 30.0


class StartedProcess(Protocol):
    """A started device process."""

    @property
    def pid(self) -> int: ...

    @property
    def descriptors(self) -> socket.socket | None:
        """The socket beside the link, where open files are handed over."""

    @property
    def socket(self) -> socket.socket: ...

    def kill(self) -> None:
        """Kills the process at once; harmless where it has ended."""

    def report(self) -> None:
        """Makes it write where its threads are to the log; harmless where it has ended."""

    async def ended(self) -> int | None:
        """Waits for its end and returns its exit code, negative for a signal; None if that is unknown."""


class Launcher(Protocol):
    """Starts device processes for the supervisor."""

    async def launch(self, spec: DeviceSpec) -> StartedProcess: ...

    async def stop(self) -> None: ...


class ForkServerLauncher:
    """Device processes as children of one forkserver, or of those before it."""

    def __init__(self, backend: str) -> None:
        self._context = multiprocessing.get_context("forkserver")
        forkserver.preload(backend)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="launcher")
        self._running: set[_Child] = set()
        self._watched: tuple[int, int] | None = None
        """The forkserver whose end is waited for, by its pid and its pidfd."""
        self._began = 0.0
        self._delay = 0.0
        """Seconds until the next one is started where this one ends soon."""
        self._replacing: asyncio.Task[None] | None = None
        self._stopped = False
        self.losses = 0
        """Number of forkservers that have ended unasked."""

    def warm_up(self) -> None:
        """Starts the forkserver, where none runs; its imports then run beside the front's own start."""
        forkserver.run()

    def pids(self) -> set[int]:
        """Returns the processes that are reaped here, and must be reaped nowhere else."""
        return forkserver.pids() | {child.pid for child in self._running}

    async def launch(self, spec: DeviceSpec) -> StartedProcess:
        """Starts one device process; returns before it is ready. A forkserver that ends under it, or is stopped, is
        replaced."""
        loop = asyncio.get_running_loop()
        starting = loop.run_in_executor(self._executor, self._start, spec)
        starting.add_done_callback(lambda _: self._watch(loop))
        begin, suspended = time.monotonic(), 0
        try:
            while not (await asyncio.wait({starting}, timeout=_LOOK_S))[0]:
                suspended = suspended + 1 if forkserver.suspended() else 0
                if suspended > 1 or time.monotonic() - begin > _START_S:
                    log.error("forkserver_killed", why="it is stopped" if suspended else "it does not answer")
                    forkserver.kill()
                    begin = time.monotonic()
            child = starting.result()
        except asyncio.CancelledError:
            starting.add_done_callback(_forget)
            raise
        self._running.add(child)
        child.begin(loop, self._running.discard)
        return child

    def _start(self, spec: DeviceSpec) -> _Child:
        for left in reversed(range(_TRIES)):
            forkserver.run()  # another one, where it has ended
            try:
                return self._fork(spec)
            except (OSError, EOFError):
                if not left or not forkserver.gone(_GONE_S):
                    raise
        raise AssertionError("unreachable")

    def _fork(self, spec: DeviceSpec) -> _Child:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in (ours, theirs):  # a chunk of a transfer at once, as far as the system lets us
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LINK_BUFFER)
        our_files, their_files = descriptors.pair()
        lifeline, life = multiprocessing.Pipe(duplex=False)
        try:
            process = self._context.Process(
                target=device_main, args=(theirs, spec, their_files, lifeline), name=f"hearthd-device-{spec.ordinal}"
            )
            process.start()
        except BaseException:
            ours.close()
            our_files.close()
            life.close()  # one that was forked all the same ends
            raise
        finally:
            theirs.close()
            their_files.close()
            lifeline.close()
        return _Child(process, ours, our_files, life)

    # ---- the forkserver's end ----

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Waits for the end of the forkserver that runs now."""
        pid = forkserver.pid()
        if self._stopped or pid is None or (self._watched is not None and self._watched[0] == pid):
            return
        self._unwatch(loop)
        with contextlib.suppress(OSError):  # it has ended, and the next launch sees that; or there is no descriptor
            self._watched = (pid, os.pidfd_open(pid))
            self._began = time.monotonic()
            loop.add_reader(self._watched[1], self._on_loss, loop)

    def _unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._watched is not None:
            loop.remove_reader(self._watched[1])
            os.close(self._watched[1])
            self._watched = None

    def _on_loss(self, loop: asyncio.AbstractEventLoop) -> None:
        """The forkserver has ended: another one is started, so that the next device process need not wait for it."""
        assert self._watched is not None
        pid = self._watched[0]
        self._unwatch(loop)
        self.losses += 1
        if time.monotonic() - self._began > _CALM_S:
            self._delay = 0.0
        log.warning("forkserver_lost", pid=pid, devices=len(self._running), restart_s=self._delay)
        if self._replacing is None or self._replacing.done():
            self._replacing = asyncio.create_task(self._replace(loop, self._delay), name="forkserver")
        self._delay = min(_MOST_DELAY_S, 2 * self._delay or 0.5)

    async def _replace(self, loop: asyncio.AbstractEventLoop, delay: float) -> None:
        await loop.run_in_executor(self._executor, forkserver.collect)
        await asyncio.sleep(delay)
        try:
            await loop.run_in_executor(self._executor, forkserver.run)
        except Exception as error:  # the next launch tries again, and says so where it matters
            log.error("forkserver_start", error=str(error))
        self._watch(loop)

    async def stop(self) -> None:
        """Ends the forkserver and the resource tracker; device processes have ended before."""
        loop = asyncio.get_running_loop()
        self._stopped = True
        self._unwatch(loop)
        if self._replacing is not None:
            self._replacing.cancel()
            await asyncio.gather(self._replacing, return_exceptions=True)
        await loop.run_in_executor(self._executor, forkserver.stop)
        self._executor.shutdown(wait=True)


def _forget(starting: asyncio.Future[_Child]) -> None:
    """Ends a process that was started for a caller that has gone."""
    if not starting.cancelled() and starting.exception() is None:
        starting.result().kill()


class _Child:
    """A device process. Its pidfd shows its end, whatever its parent is; its exit code comes from the forkserver, else
    from the system, whose child it becomes when the forkserver ends."""

    def __init__(self, process: ForkServerProcess, link: socket.socket, files: socket.socket, life: Connection) -> None:
        self._process = process
        self.socket = link
        self.descriptors = files
        self._life = life
        assert process.pid is not None
        self.pid: int = process.pid
        self._pidfd: int | None = None
        with contextlib.suppress(OSError):  # it has ended by now, and its exit code says so
            self._pidfd = os.pidfd_open(self.pid)
        self._exit: asyncio.Future[int | None] | None = None
        self._told = True
        """The forkserver may still hand the exit code on."""

    def begin(self, loop: asyncio.AbstractEventLoop, on_end: Callable[[_Child], None]) -> None:
        """Waits for its end from now on; `on_end` is called with it."""
        self._exit = loop.create_future()
        self._exit.add_done_callback(lambda _: on_end(self))
        loop.add_reader(self._process.sentinel, self._on_status, loop)
        if self._pidfd is not None:
            loop.add_reader(self._pidfd, self._on_end, loop)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def report(self) -> None:
        self._signal(signal.SIGUSR1)  # written by a signal handler: it works in a thread that is stuck

    def _signal(self, number: signal.Signals) -> None:
        if self._exit is None or not self._exit.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    async def ended(self) -> int | None:
        assert self._exit is not None
        return await asyncio.shield(self._exit)

    def _on_status(self, loop: asyncio.AbstractEventLoop) -> None:
        """The forkserver has handed the exit code on, or has ended."""
        loop.remove_reader(self._process.sentinel)
        self._told = False
        code = self._process.exitcode
        if code != _UNKNOWN:
            self._finish(loop, code)
        elif self._pidfd is None or forkserver.state_of(self.pid) in ("", "Z", "X"):
            self._finish(loop, self._collect())

    def _on_end(self, loop: asyncio.AbstractEventLoop) -> None:
        """The process has ended; the forkserver, where it runs, is about to say how."""
        assert self._pidfd is not None
        loop.remove_reader(self._pidfd)
        if not self._told:
            self._finish(loop, self._collect())
        else:
            loop.call_later(0 if forkserver.suspended() else _STATUS_S, self._on_silence, loop)

    def _on_silence(self, loop: asyncio.AbstractEventLoop) -> None:
        """The forkserver has not said how a process ended."""
        if self._exit is not None and not self._exit.done():
            loop.remove_reader(self._process.sentinel)
            self._finish(loop, self._collect())

    def _collect(self) -> int | None:
        """The exit code of a process that has ended: waited for where it is a child by now, else read from what the
        system keeps until its parent has waited for it."""
        if self._pidfd is None:
            return None
        try:
            found = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
            if found is not None:
                return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        except ChildProcessError:
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
                if fields[0] == "Z":
                    return os.waitstatus_to_exitcode(int(fields[_EXIT_CODE]))
        return None

    def _finish(self, loop: asyncio.AbstractEventLoop, code: int | None) -> None:
        assert self._exit is not None
        if self._exit.done():
            return
        self._exit.set_result(code)
        self._life.close()
        if self._pidfd is not None:
            loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        with contextlib.suppress(ValueError):  # the forkserver has not said that it ended; freed at the next start
            self._process.close()


_UNKNOWN = 255
"""The exit code that `multiprocessing` reports if the forkserver ended before its child."""
_EXIT_CODE = 49
"""Place of the exit status among the fields of `/proc/PID/stat` that follow the name (proc_pid_stat(5): field 52)."""
