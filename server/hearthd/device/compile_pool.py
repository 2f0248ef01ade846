"""Compile workers from the device process's side: started, given jobs, stopped at their limits, replaced.

A worker serves one job at a time, and keeps its compiler loaded from job to job. One that crashes, or has to be
stopped, costs the job that it had; the next job gets another. All methods may be called from any thread and block; the
device-handle thread calls `warm`, `cancel` and `close` only, which do not.
"""

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
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hearth_proto.reasons import Reason, Refusal
from hearthd.device import compile_messages as messages
from hearthd.device import compile_worker
from hearthd.device.compile_limits import CompileLimits
from hearthd.device.server import Assembly, Compiler, Image, Job

START_S = 60.0
"""For a worker to start and to load its compiler."""

_BOOT = """import sys
sys.path[:] = {path!r}
from hearthd.device.compile_worker import main
main({link}, {life}, {backend!r})
"""
_SCRATCH = "hearth-workers-"
_GROWTH = 4
"""A worker whose address space has grown by more than this part of its allowance is replaced."""

_NEAR = 0.75
"""A compiler that crashed with this part of its memory in use is taken to have run out of it."""

_TRIES = 4
"""One that was idle may have died, by the system's hand for one, or be of an older recipe."""

_SAID = 4096
_OUT_OF_MEMORY = ("out of memory", "bad_alloc", "memory exhausted", "allocate memory")


class Died(Exception):
    """The worker is gone: `status` as waitpid reports it, `resident` its largest resident set in bytes."""

    def __init__(self, status: int, resident: int, said: str) -> None:
        super().__init__(f"ended with status {status}")
        self.status = status
        self.resident = resident
        self.said = said


class NeverBegan(Exception):
    """The worker was gone before it had the job: another one can have it."""


def fresh(backend: str, link: int, life: int, said: int) -> int:
    """A worker in a fresh interpreter: safe whatever this process has begun, threads and CUDA among it."""
    boot = _BOOT.format(path=sys.path, link=link, life=life, backend=backend)
    process = subprocess.Popen(
        [sys.executable, "-c", boot],
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        pass_fds=(link, life),
        start_new_session=True,
    )
    process.returncode = 0  # it is waited for by its number, and not by this object
    return process.pid


def forked(backend: str, link: int, life: int, said: int) -> int:
    """A worker as a copy of this process: at once, where nothing has begun yet, no thread and no CUDA context."""
    if threading.active_count() != 1:
        return fresh(backend, link, life, said)
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # whoever is first: it may have to be stopped before it has run
        return pid
    status = 1
    try:
        _leave(link, life, said)
        compile_worker.main(3, 4, backend)
        status = 0
    finally:
        os._exit(status)


def _leave(link: int, life: int, said: int) -> None:
    """In the copy: keeps the two descriptors, as 3 and 4, and nothing else of the process that it was."""
    with contextlib.suppress(PermissionError):  # it leads its group already, and so cannot have a session of its own
        os.setsid()
    faulthandler.unregister(signal.SIGUSR1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    link, life, said = (fcntl.fcntl(descriptor, fcntl.F_DUPFD, 16) for descriptor in (link, life, said))
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, place in ((null, 0), (said, 1), (said, 2), (link, 3), (life, 4)):
        os.dup2(descriptor, place, inheritable=place < 3)
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if descriptor > 4:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(descriptor)


class Worker:
    """One compile worker, as `start` starts it."""

    def __init__(self, backend: str, scratch: Path, start: Callable[[str, int, int, int], int]) -> None:
        ours, theirs = socket.socketpair()
        life, self._lifeline = os.pipe()
        self._said = os.memfd_create("hearth-compile-log")
        self.link = ours
        self.scratch = scratch
        self.job: Job | None = None
        self.cancelled = False
        self.hello: dict[str, Any] | None = None
        self.recipe: dict[str, Any] | None = None
        self._ended: Died | None = None
        self._reaped = False
        self._ending = threading.Lock()
        self._greeting = threading.Lock()
        try:
            with theirs:
                self.pid = start(backend, theirs.fileno(), life, self._said)
        except BaseException:
            ours.close()
            os.close(self._lifeline)
            os.close(self._said)
            raise
        finally:
            os.close(life)

    def alive(self) -> bool:
        """Whether it would take a job."""
        return self._ended is None and self._process_runs()

    def ask(
        self, head: dict[str, Any], parts: list[bytes], deadline: float, max_bytes: int
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Its answer. Raises TimeoutError, Died, and NeverBegan where it was gone before it had the job."""
        os.ftruncate(self._said, 0)
        try:
            self.link.settimeout(max(0.001, deadline - time.monotonic()))
            messages.send(self.link, head, parts)
            messages.receive(self.link, deadline=deadline, max_bytes=messages.MAX_HEAD)
        except messages.Closed:
            raise NeverBegan from self.end()
        try:
            return messages.receive(self.link, deadline=deadline, max_bytes=max_bytes)
        except messages.Closed:
            raise self.end() from None

    def greet(self, setup: dict[str, Any]) -> None:
        """Tells it what to load, once. It does so while its first job is still to come."""
        with self._greeting:
            if self.recipe is not None:
                return
            self.recipe = setup["recipe"]
            self.link.settimeout(START_S)
            with contextlib.suppress(messages.Closed, TimeoutError):  # seen when the answer is waited for
                messages.send(self.link, setup)

    def greeted(self) -> dict[str, Any]:
        """What it said when it was ready. Raises TimeoutError, Died."""
        if self.hello is None:
            try:
                self.hello, _ = messages.receive(self.link, deadline=time.monotonic() + START_S, max_bytes=1 << 20)
            except messages.Closed:
                raise self.end() from None
        return self.hello

    def kill(self) -> None:
        """At once, with all that it has started; `end` is still to be called."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if not self._reaped:
                os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> Died:
        """Sees it end, and clears up after it."""
        with self._ending:
            if self._ended is None:
                # A worker that has closed its socket is on its way out by itself: its own end is to be told, not this.
                self._wait(1.0)
                self.kill()
                status, resident = self._reap()
                self._ended = Died(status, resident, self._last_words())
                self.link.close()
                os.close(self._lifeline)
                os.close(self._said)
                shutil.rmtree(self.scratch, ignore_errors=True)
            return self._ended

    def _process_runs(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._process_runs() and time.monotonic() < deadline and not self.cancelled:
            time.sleep(0.001)

    def _reap(self) -> tuple[int, int]:
        self._reaped = True  # from here on its number may be another's
        _, status, usage = os.wait4(self.pid, 0)
        self._reap_orphans()
        return os.waitstatus_to_exitcode(status), usage.ru_maxrss << 10

    def _reap_orphans(self) -> None:
        """What the worker had started is this process's child now, where it has said that it takes orphans in."""
        deadline = time.monotonic() + 1.0
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < deadline:
                if os.waitpid(-self.pid, os.WNOHANG)[0] == 0:
                    time.sleep(0.001)

    def _last_words(self) -> str:
        size = os.fstat(self._said).st_size
        return os.pread(self._said, _SAID, max(0, size - _SAID)).decode(errors="replace").strip()


class CompileWorkers:
    """The workers of one device process. Implements `hearthd.device.compiler.Runner`."""

    def __init__(self, backend: str, limits: CompileLimits, *, confine: bool = True) -> None:
        self._backend = backend
        self._limits = limits
        self._confine = confine
        self._compiler: Compiler | None = None
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._busy: list[Worker] = []
        self._closed = False
        self._scratch: _Scratch | None = None
        self._identity: bytes | None = None
        self._assembler: bytes | Refusal | None = None
        self.confined = ""
        """What keeps the workers from the files of the host; empty until one has started, and where nothing does."""

    def warm(self, start: Callable[[str, int, int, int], int] = fresh) -> None:
        """Starts a worker ahead of its first job. Never raises: a worker that cannot be started is told of then."""
        with contextlib.suppress(OSError), self._lock:
            if not self._closed:
                self._idle.append(self._start(start))

    def serve(self, compiler: Compiler) -> None:
        """Jobs are for `compiler`, made again in each worker."""
        self._compiler = compiler

    # ---- Runner ----

    def ready(self) -> None:
        """Has the worker that was started load its compiler."""
        recipe = dict(self._of().recipe())
        with self._lock:
            workers = list(self._idle)
        for worker in workers:
            worker.greet(self._setup(worker, recipe))

    def identity(self, job: Job) -> bytes:
        """Raises Refusal."""
        compiler = self._of()
        if isinstance(job, Assembly):
            return self._assembler_identity()
        if compiler.light:
            return compiler.identity()
        if self._identity is None:
            with self._worker(None) as worker:
                self._identity = bytes.fromhex(worker.greeted()["identity"])
        return self._identity

    def run(self, job: Job) -> Image:
        """Raises Refusal: what the compiler raised, COMPILE_LIMIT, COMPILE_FAILED for a crash, CANCELLED."""
        if not isinstance(job, Assembly):
            self._of().prepare(job)
        head, parts = messages.pack_job(job)
        answer, code = self._ask(job, head, parts)
        if "reason" in answer:
            raise messages.unpack_refusal(answer)
        return messages.unpack_image(answer, code)

    def cancel(self, job: Job) -> None:
        """Stops the worker that has the job, if one has."""
        with self._lock:
            for worker in self._busy:
                if worker.job is job:
                    worker.cancelled = True
                    worker.kill()

    def rest(self) -> None:
        """There has been nothing to do for a while: one worker is enough."""
        with self._lock:
            spare, self._idle = self._idle[:-1], self._idle[-1:]
        for worker in spare:
            worker.kill()
            worker.end()

    def close(self) -> None:
        """Stops all workers at once, and waits for none of their jobs."""
        with self._lock:
            self._closed = True
            busy, idle = list(self._busy), self._idle
            self._idle = []
        for worker in (*busy, *idle):
            worker.cancelled = True
            worker.kill()
        for worker in idle:
            worker.end()
        with self._lock:
            scratch, self._scratch = self._scratch, None
        if scratch is not None:
            scratch.close()

    def pids(self) -> list[int]:
        """Of the workers that are there."""
        with self._lock:
            return [worker.pid for worker in (*self._idle, *self._busy)]

    # ---- inside ----

    def _of(self) -> Compiler:
        assert self._compiler is not None, "a job came before the compiler"
        return self._compiler

    def _assembler_identity(self) -> bytes:
        if self._assembler is None:
            answer, _ = self._ask(None, {"job": "assembler"}, [])
            if "reason" in answer:
                refusal = messages.unpack_refusal(answer)
                if refusal.reason is not Reason.NO_COMPILER:
                    raise refusal
                self._assembler = refusal
            else:
                self._assembler = bytes.fromhex(answer["identity"])
        if isinstance(self._assembler, Refusal):
            raise self._assembler
        return self._assembler

    def _ask(self, job: Job | None, head: dict[str, Any], parts: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        for _ in range(_TRIES):
            with contextlib.suppress(NeverBegan), self._worker(job) as worker:
                return self._asked(worker, head, parts)
        raise _not_started("each was gone before it had begun")

    def _asked(self, worker: Worker, head: dict[str, Any], parts: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        limits = self._limits
        deadline = time.monotonic() + limits.seconds
        try:
            answer = worker.ask(head, parts, deadline, limits.file_bytes + messages.MAX_HEAD)
        except TimeoutError:
            worker.kill()
            worker.end()
            raise (_cancelled() if worker.cancelled else limits.out_of_time()) from None
        except Died as died:
            raise (_cancelled() if worker.cancelled else self._crashed(died)) from None
        except NeverBegan:
            if worker.cancelled:
                raise _cancelled() from None
            raise
        if self._spent(worker, answer[0]):
            worker.kill()
            worker.end()
        return answer

    def _crashed(self, died: Died) -> Refusal:
        said = died.said.lower()
        if died.resident > _NEAR * self._limits.memory or any(words in said for words in _OUT_OF_MEMORY):
            return self._limits.out_of_memory()
        if died.status < 0:
            return self._limits.ended(-died.status, died.said)
        return Refusal(
            Reason.COMPILE_FAILED,
            f"The compiler ended with status {died.status} and no answer; nothing else is affected.",
            fix="change what is unusual in the source",
            details={"status": died.status, "log": died.said},
        )

    def _spent(self, worker: Worker, answer: dict[str, Any]) -> bool:
        """Whether the worker is better replaced: it has reached a limit, or holds on to much memory."""
        if answer.get("reason") in (Reason.COMPILE_LIMIT, Reason.INTERNAL):
            return True
        began = worker.greeted()["address_space"]
        return bool(answer.get("address_space", 0) - began > self._limits.memory // _GROWTH)

    @contextlib.contextmanager
    def _worker(self, job: Job | None) -> Iterator[Worker]:
        """A worker that is ready, for one job. Raises Refusal where none can be started."""
        worker = self._taken(job)
        try:
            yield worker
        finally:
            worker.job = None
            with self._lock:
                self._busy.remove(worker)
                kept = worker.alive() and not self._closed and not worker.cancelled
                if kept:
                    self._idle.append(worker)
            if not kept:
                worker.kill()
                worker.end()
                self._replace()

    def _replace(self) -> None:
        """Another worker in the place of one that is gone, so that the next job need not wait for it."""
        with self._lock:
            wanted = not self._idle and not self._closed
        if wanted:
            self.warm()
            with contextlib.suppress(Exception):  # told when a job needs it
                self.ready()

    def _taken(self, job: Job | None) -> Worker:
        said = ""
        recipe = dict(self._of().recipe())
        for _ in range(_TRIES):
            worker = self._next(job)
            try:
                worker.greet(self._setup(worker, recipe))
                self.confined = worker.greeted()["confined"]
                if worker.alive() and worker.recipe == recipe:
                    return worker
                worker.kill()
                said = worker.end().said
            except (Died, TimeoutError) as error:
                worker.kill()
                said = worker.end().said or str(error)
            except BaseException:
                self._drop(worker)
                raise
            self._drop(worker)
            if worker.cancelled:
                raise _cancelled()
        raise _not_started(said)

    def _next(self, job: Job | None) -> Worker:
        with self._lock:
            if self._closed:
                raise _cancelled()
            try:
                worker = self._idle.pop() if self._idle else self._start()
            except OSError as error:
                raise _not_started(str(error)) from error
            worker.job = job
            self._busy.append(worker)
            return worker

    def _drop(self, worker: Worker) -> None:
        worker.kill()
        worker.end()
        with self._lock:
            self._busy.remove(worker)

    def _start(self, start: Callable[[str, int, int, int], int] = fresh) -> Worker:
        if self._scratch is None:
            self._scratch = _Scratch()
        return Worker(self._backend, self._scratch.room(), start)

    def _setup(self, worker: Worker, recipe: dict[str, Any]) -> dict[str, Any]:
        return {
            "recipe": recipe,
            "scratch": str(worker.scratch),
            "confine": self._confine,
            "seconds": self._limits.seconds,
            "memory": self._limits.memory,
            "file_bytes": self._limits.file_bytes,
        }


class _Scratch:
    """A directory for the workers' files, one room each. What a killed device process left is cleared away."""

    def __init__(self) -> None:
        for stale in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
            _clear_unless_used(stale)
        self._path, self._descriptor = self._made()
        self._rooms = 0

    @staticmethod
    def _made() -> tuple[Path, int]:
        while True:
            path = Path(tempfile.mkdtemp(prefix=_SCRATCH))
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # until this process is gone
            if os.fstat(descriptor).st_nlink:
                return path, descriptor
            os.close(descriptor)  # another process has cleared it away, before it was known to be in use

    def room(self) -> Path:
        self._rooms += 1
        path = self._path / str(self._rooms)
        path.mkdir(mode=0o700)
        return path

    def close(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
        os.close(self._descriptor)


def _clear_unless_used(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_symlink() or path.stat().st_uid != os.geteuid():
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)


def _not_started(said: str) -> Refusal:
    return Refusal(
        Reason.INTERNAL,
        "No compile worker could be started, or stayed.",
        fix="look at the daemon's memory, its limits on processes, and its temporary directory",
        details={"log": said},
    )


def _cancelled() -> Refusal:
    return Refusal(Reason.CANCELLED, "the compile was stopped: nobody waits for it any more")
