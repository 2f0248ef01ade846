"""A compile worker as seen by its parent process: start, jobs, and exit."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hearthd.device.compiler import protocol
from hearthd.device.compiler.worker_main import Main
from hearthd.device.platform.sandbox import reap_group

Start = Callable[[Main, int, int, int], int]
"""Starts a worker. Arguments: the entry point, then the descriptors of link, lifeline and log. Returns the process
ID."""

START_S = 60.0
"""Timeout in seconds for a worker to start and to load its compiler."""

_BOOT = """import sys
sys.path[:] = {path!r}
from {module} import {name}
{name}({link}, {lifeline})
"""

_MAX_LOG = 4096
"""Number of bytes of a worker's last output that are kept."""


class WorkerDied(Exception):
    """The worker has exited.

    `status` is the exit status as waitpid reports it, `resident` the worker's largest resident set in bytes, `log` its
    last output.
    """

    def __init__(self, status: int, resident: int, log: str) -> None:
        super().__init__(f"ended with status {status}")
        self.status = status
        self.resident = resident
        self.log = log


class WorkerNotStarted(Exception):
    """The worker exited before it received the job, so that another worker can run the job."""


def spawn_worker(main: Main, link: int, lifeline: int, log: int) -> int:
    """Starts a worker in a fresh interpreter, safe whatever this process has started, even CUDA."""
    boot = _BOOT.format(path=sys.path, module=main.__module__, name=main.__name__, link=link, lifeline=lifeline)
    process = subprocess.Popen(
        [sys.executable, "-c", boot],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(link, lifeline),
        start_new_session=True,
    )
    process.returncode = 0  # the process is waited for by its ID, not through this object
    return process.pid


def fork_worker(main: Main, link: int, lifeline: int, log: int) -> int:
    """Starts a worker as a copy of this process, which is fast.

    Only safe while this process has no other thread and no CUDA context; starts a fresh interpreter if there are other
    threads.
    """
    if threading.active_count() != 1:
        return spawn_worker(main, link, lifeline, log)
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # in parent and child: the worker may have to be killed before it has run
        return pid
    status = 1
    try:
        _redirect_descriptors(link, lifeline, log)
        main(3, 4)
        status = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)


def _redirect_descriptors(link: int, lifeline: int, log: int) -> None:
    """Closes all descriptors of the copied process except those that it needs.

    `link` and `lifeline` become 3 and 4, standard output and error go to `log`.
    """
    with contextlib.suppress(PermissionError):  # a group leader cannot start a new session
        os.setsid()
    faulthandler.unregister(signal.SIGUSR1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    link, lifeline, log = (fcntl.fcntl(descriptor, fcntl.F_DUPFD, 16) for descriptor in (link, lifeline, log))
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, target in ((null, 0), (log, 1), (log, 2), (link, 3), (lifeline, 4)):
        os.dup2(descriptor, target, inheritable=target < 3)
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if descriptor > 4:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(descriptor)


class CompileWorker:
    """A running compile worker."""

    def __init__(self, main: Main, scratch: Path, start: Start) -> None:
        link, worker_link = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        self._log = os.memfd_create("hearth-compile-log")
        fcntl.fcntl(self._log, fcntl.F_SETFL, os.O_APPEND)  # the log is truncated between jobs
        self.link = link
        self.scratch = scratch
        self.cancelled = False
        self._hello: dict[str, Any] | None = None
        self.recipe: dict[str, Any] | None = None
        self._ended: WorkerDied | None = None
        self._reaped = False
        self._end_lock = threading.Lock()
        self._setup_lock = threading.Lock()
        try:
            with worker_link:
                self.pid = start(main, worker_link.fileno(), lifeline, self._log)
        except BaseException:
            link.close()
            os.close(self._lifeline)
            os.close(self._log)
            raise
        finally:
            os.close(lifeline)

    def alive(self) -> bool:
        """True if the worker can accept a job."""
        return self._ended is None and self._process_runs()

    def request(
        self, head: dict[str, Any], parts: list[bytes], deadline: float, max_bytes: int
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Sends a job and returns the answer.

        Raises TimeoutError, WorkerDied, and WorkerNotStarted if the worker exited before it received the job.
        """
        os.ftruncate(self._log, 0)
        try:
            self.link.settimeout(max(0.001, deadline - time.monotonic()))
            protocol.send(self.link, head, parts)
            protocol.receive(self.link, deadline=deadline, max_bytes=protocol.MAX_HEAD)
        except protocol.WorkerConnectionClosed:
            raise WorkerNotStarted from self.end()
        try:
            return protocol.receive(self.link, deadline=deadline, max_bytes=max_bytes)
        except protocol.WorkerConnectionClosed:
            raise self.end() from None

    def send_setup(self, setup: dict[str, Any]) -> None:
        """Sends the setup, once, so that the worker can load its compiler before its first job arrives."""
        with self._setup_lock:
            if self.recipe is not None:
                return
            self.recipe = setup["recipe"]
            self.link.settimeout(START_S)
            with contextlib.suppress(
                protocol.WorkerConnectionClosed, TimeoutError
            ):  # reported when the answer is received
                protocol.send(self.link, setup)

    def hello(self) -> dict[str, Any]:
        """Returns the worker's first message. Raises TimeoutError, WorkerDied."""
        if self._hello is None:
            try:
                self._hello, _ = protocol.receive(self.link, deadline=time.monotonic() + START_S, max_bytes=1 << 20)
            except protocol.WorkerConnectionClosed:
                raise self.end() from None
        return self._hello

    def cancel(self) -> None:
        """Kills the worker because its job is not needed any more; its end is not a failure. Does not block."""
        self.cancelled = True
        self.kill()

    def kill(self) -> None:
        """Kills the worker and its children immediately. `end` must still be called."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if not self._reaped:
                os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> WorkerDied:
        """Waits for the worker to exit, killing it after 1 s, and releases its resources.

        Returns its exit status and last output.
        """
        with self._end_lock:
            if self._ended is None:
                # A worker that has closed its socket is about to exit: report its exit status, not that of the kill.
                self._wait(1.0)
                self.kill()
                status, resident = self._reap()
                self._ended = WorkerDied(status, resident, self._read_log())
                self.link.close()
                os.close(self._lifeline)
                os.close(self._log)
                shutil.rmtree(self.scratch, ignore_errors=True)
            return self._ended

    def stop(self) -> WorkerDied:
        """Kills the worker and its children, and releases its resources."""
        self.kill()
        return self.end()

    def _process_runs(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._process_runs() and time.monotonic() < deadline and not self.cancelled:
            time.sleep(0.001)

    def _reap(self) -> tuple[int, int]:
        self._reaped = True  # from here on, its process ID may belong to another process
        _, status, usage = os.wait4(self.pid, 0)
        reap_group(self.pid)
        return os.waitstatus_to_exitcode(status), usage.ru_maxrss << 10

    def _read_log(self) -> str:
        """Returns the end of the worker's output."""
        size = os.fstat(self._log).st_size
        return os.pread(self._log, _MAX_LOG, max(0, size - _MAX_LOG)).decode(errors="replace").strip()
