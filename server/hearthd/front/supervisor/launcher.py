"""Launcher: starts device processes from a forkserver that has imported their modules, and watches for their end.

Starting blocks (for a fork, and at first for the forkserver's imports), so it runs in a separate thread. There is only
one such thread, because `multiprocessing` keeps state that is not thread-safe. The forkserver, its children and the
resource tracker have all ended when `stop` returns.

Device processes do not depend on the forkserver. If it ends, another forkserver is started immediately. Its children
become children of the front, which adopts orphans (`daemon.orphans`) and waits for them through their pidfds.
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
"""Size of a link's socket buffers in bytes, as far as the system allows: a chunk of a transfer and the frames around
it."""
_MAX_ATTEMPTS = 3
"""Maximum number of attempts to start a device process if the forkserver ends during the start."""
_CHECK_INTERVAL_S = 0.25
"""Interval, in seconds, between two checks of a forkserver that is starting a process. A forkserver that is stopped at
two consecutive checks is replaced."""
_START_TIMEOUT_S = 60.0
"""Maximum time, in seconds, for a start, including the forkserver's imports. Afterwards the forkserver is replaced."""
_END_TIMEOUT_S = 1.0
"""Time, in seconds, to wait for the end of a forkserver that failed to start a process."""
_STATUS_TIMEOUT_S = 0.5
"""Time, in seconds, for the forkserver to pass on the exit code of a process that has ended."""
_STABLE_AGE_S = 60.0
"""Age, in seconds, from which a forkserver that ends is replaced immediately. Younger ones are replaced after a delay
that doubles."""
_MAX_DELAY_S = 30.0


class StartedProcess(Protocol):
    """A started device process."""

    @property
    def pid(self) -> int:
        """The process id, which is kept after the end of the process."""
        ...

    @property
    def descriptors(self) -> socket.socket | None:
        """The socket over which file descriptors are passed, in addition to the link."""

    @property
    def socket(self) -> socket.socket:
        """The front's end of the link, as a connected socket. `Process.reap` closes it."""
        ...

    def kill(self) -> None:
        """Kills the process immediately. Does nothing if the process has ended."""

    def report(self) -> None:
        """Makes the process write the stacks of its threads to the log. Does nothing if the process has ended."""

    async def ended(self) -> int | None:
        """Waits for the end of the process and returns its exit code, negative for a signal.

        None: the exit code is unknown.
        """


class Launcher(Protocol):
    """Starts device processes for the supervisor."""

    async def launch(self, spec: DeviceSpec) -> StartedProcess:
        """Starts one device process, and returns before it is ready. Raises an error if it cannot be started."""
        ...

    async def stop(self) -> None:
        """Releases what starting needs. Called once, after all device processes have ended."""
        ...


class ForkServerLauncher:
    """Starts device processes as children of a forkserver, which is replaced if it ends."""

    def __init__(self, backend: str) -> None:
        self._context = multiprocessing.get_context("forkserver")
        forkserver.preload(backend)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="launcher")
        self._running: set[_Child] = set()
        self._watched: tuple[int, int] | None = None
        """The pid and the pidfd of the forkserver whose end is watched."""
        self._watched_since = 0.0
        self._delay = 0.0
        """Delay, in seconds, before the next forkserver is started if the present one ends early."""
        self._replacing: asyncio.Task[None] | None = None
        self._stopped = False
        self.losses = 0
        """Number of forkservers that ended without being asked to."""

    def warm_up(self) -> None:
        """Starts the forkserver if none runs. Its imports then run in parallel with the front's own start."""
        forkserver.run()

    def pids(self) -> set[int]:
        """Returns the pids of the processes that this class reaps. No other code may reap them."""
        return forkserver.pids() | {child.pid for child in self._running}

    async def launch(self, spec: DeviceSpec) -> StartedProcess:
        """Starts one device process, and returns before it is ready.

        A forkserver that ends or is stopped during the start is replaced.
        """
        loop = asyncio.get_running_loop()
        starting = loop.run_in_executor(self._executor, self._start, spec)
        starting.add_done_callback(lambda _: self._watch(loop))
        started_at, suspended = time.monotonic(), 0
        try:
            while not (await asyncio.wait({starting}, timeout=_CHECK_INTERVAL_S))[0]:
                suspended = suspended + 1 if forkserver.suspended() else 0
                if suspended > 1 or time.monotonic() - started_at > _START_TIMEOUT_S:
                    log.error("forkserver_killed", why="it is stopped" if suspended else "it does not answer")
                    forkserver.kill()
                    started_at = time.monotonic()
            child = starting.result()
        except asyncio.CancelledError:
            starting.add_done_callback(_kill_abandoned)
            raise
        self._running.add(child)
        child.watch(loop, self._running.discard)
        return child

    def _start(self, spec: DeviceSpec) -> _Child:
        for attempts_left in reversed(range(_MAX_ATTEMPTS)):
            forkserver.run()  # starts another forkserver if the last one has ended
            try:
                return self._fork(spec)
            except (OSError, EOFError):
                if not attempts_left or not forkserver.has_ended(_END_TIMEOUT_S):
                    raise
        raise AssertionError("unreachable")

    def _fork(self, spec: DeviceSpec) -> _Child:
        parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in (parent_end, child_end):  # large enough for a chunk of a transfer, as far as the system allows
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LINK_BUFFER)
        parent_files, child_files = descriptors.pair()
        life_reader, life_writer = multiprocessing.Pipe(duplex=False)
        try:
            process = self._context.Process(
                target=device_main,
                args=(child_end, spec, child_files, life_reader),
                name=f"hearthd-device-{spec.ordinal}",
            )
            process.start()
        except BaseException:
            parent_end.close()
            parent_files.close()
            life_writer.close()  # a process that was forked nevertheless ends when this pipe closes
            raise
        finally:
            child_end.close()
            child_files.close()
            life_reader.close()
        return _Child(process, parent_end, parent_files, life_writer)

    # ---- the end of the forkserver ----

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watches for the end of the forkserver that runs now."""
        pid = forkserver.pid()
        if self._stopped or pid is None or (self._watched is not None and self._watched[0] == pid):
            return
        self._unwatch(loop)
        # OSError: the forkserver has ended, which the next launch detects, or there is no free descriptor.
        with contextlib.suppress(OSError):
            self._watched = (pid, os.pidfd_open(pid))
            self._watched_since = time.monotonic()
            loop.add_reader(self._watched[1], self._on_forkserver_end, loop)

    def _unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._watched is not None:
            loop.remove_reader(self._watched[1])
            os.close(self._watched[1])
            self._watched = None

    def _on_forkserver_end(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts another forkserver after one has ended, so that the next device process has its imports ready."""
        assert self._watched is not None
        pid = self._watched[0]
        self._unwatch(loop)
        self.losses += 1
        if time.monotonic() - self._watched_since > _STABLE_AGE_S:
            self._delay = 0.0
        log.warning("forkserver_lost", pid=pid, devices=len(self._running), restart_s=self._delay)
        if self._replacing is None or self._replacing.done():
            self._replacing = asyncio.create_task(self._replace(loop, self._delay), name="forkserver")
        self._delay = min(_MAX_DELAY_S, 2 * self._delay or 0.5)

    async def _replace(self, loop: asyncio.AbstractEventLoop, delay: float) -> None:
        await loop.run_in_executor(self._executor, forkserver.reap)
        await asyncio.sleep(delay)
        try:
            await loop.run_in_executor(self._executor, forkserver.run)
        except Exception as error:  # the next launch tries again, and reports an error that matters
            log.error("forkserver_start", error=str(error))
        self._watch(loop)

    async def stop(self) -> None:
        """Ends the forkserver and the resource tracker. Device processes have ended before."""
        loop = asyncio.get_running_loop()
        self._stopped = True
        self._unwatch(loop)
        if self._replacing is not None:
            self._replacing.cancel()
            await asyncio.gather(self._replacing, return_exceptions=True)
        await loop.run_in_executor(self._executor, forkserver.stop)
        self._executor.shutdown(wait=True)


def _kill_abandoned(starting: asyncio.Future[_Child]) -> None:
    """Kills a process whose start was cancelled by its caller."""
    if not starting.cancelled() and starting.exception() is None:
        starting.result().kill()


class _Child:
    """A device process.

    Its pidfd shows its end, whichever process is its parent. Its exit code comes from the forkserver or, after the
    forkserver has ended, from the system, because the process is then a child of the front.
    """

    def __init__(self, process: ForkServerProcess, link: socket.socket, files: socket.socket, life: Connection) -> None:
        self._process = process
        self.socket = link
        self.descriptors = files
        self._life = life
        assert process.pid is not None
        self.pid: int = process.pid
        self._pidfd: int | None = None
        with contextlib.suppress(OSError):  # the process has ended already; its exit code shows that
            self._pidfd = os.pidfd_open(self.pid)
        self._exit: asyncio.Future[int | None] | None = None
        self._status_pending = True
        """True while the forkserver may still pass on the exit code."""

    def watch(self, loop: asyncio.AbstractEventLoop, on_end: Callable[[_Child], None]) -> None:
        """Watches for the end of the process from now on. `on_end` is called after the end."""
        self._exit = loop.create_future()
        self._exit.add_done_callback(lambda _: on_end(self))
        loop.add_reader(self._process.sentinel, self._on_status, loop)
        if self._pidfd is not None:
            loop.add_reader(self._pidfd, self._on_end, loop)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def report(self) -> None:
        self._signal(signal.SIGUSR1)  # a signal handler writes the stacks, so this works even if a thread is stuck

    def _signal(self, number: signal.Signals) -> None:
        if self._exit is None or not self._exit.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    async def ended(self) -> int | None:
        assert self._exit is not None
        return await asyncio.shield(self._exit)

    def _on_status(self, loop: asyncio.AbstractEventLoop) -> None:
        """Handles the forkserver's notification of the exit code, or the end of the forkserver."""
        loop.remove_reader(self._process.sentinel)
        self._status_pending = False
        code = self._process.exitcode
        if code != _UNKNOWN_EXIT_CODE:
            self._finish(loop, code)
        elif self._pidfd is None or forkserver.state_of(self.pid) in ("", "Z", "X"):
            self._finish(loop, self._read_exit_code())

    def _on_end(self, loop: asyncio.AbstractEventLoop) -> None:
        """Handles the end of the process. The forkserver, if it runs, is about to pass on the exit code."""
        assert self._pidfd is not None
        loop.remove_reader(self._pidfd)
        if not self._status_pending:
            self._finish(loop, self._read_exit_code())
        else:
            loop.call_later(0 if forkserver.suspended() else _STATUS_TIMEOUT_S, self._on_status_timeout, loop)

    def _on_status_timeout(self, loop: asyncio.AbstractEventLoop) -> None:
        """Handles the timeout for the forkserver to pass on the exit code of a process."""
        if self._exit is not None and not self._exit.done():
            loop.remove_reader(self._process.sentinel)
            self._finish(loop, self._read_exit_code())

    def _read_exit_code(self) -> int | None:
        """Returns the exit code of a process that has ended.

        If the process is a child by now, waits for it. Otherwise reads the code from `/proc`, where it is visible until
        the parent has reaped the process.
        """
        if self._pidfd is None:
            return None
        try:
            status = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
            if status is not None:
                return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        except ChildProcessError:
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
                if fields[0] == "Z":
                    return os.waitstatus_to_exitcode(int(fields[_EXIT_CODE_FIELD]))
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
        # ValueError: the forkserver has not reported the end; the object is freed at the next start.
        with contextlib.suppress(ValueError):
            self._process.close()


_UNKNOWN_EXIT_CODE = 255
"""The exit code that `multiprocessing` reports if the forkserver ended before its child."""
_EXIT_CODE_FIELD = 49
"""Index of the exit status among the fields of `/proc/PID/stat` that follow the name (proc_pid_stat(5): field 52)."""
