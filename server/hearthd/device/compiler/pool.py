"""Compile workers of a device process: given jobs, stopped at their limits, replaced.

A worker serves one job at a time, and keeps its compiler loaded from job to job. One that crashes, or has to be
stopped, costs the job that it had; the next job gets another. All methods may be called from any thread and block; the
device-handle thread calls `warm`, `cancel` and `close` only, which do not.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Assembly, Compiler, Image, Job
from hearthd.device.compiler import protocol
from hearthd.device.compiler.limits import CompileLimits
from hearthd.device.compiler.worker_main import Main
from hearthd.device.compiler.worker_process import CompileWorker, Start, WorkerDied, WorkerNotStarted, forked, fresh
from hearthd.shared import disk
from hearthd.shared.scratch_dir import Scratch

__all__ = ["CompileWorkers", "forked", "fresh"]

_GROWTH = 4
"""A worker whose address space has grown by more than this part of its allowance is replaced."""

_NEAR = 0.75
"""A compiler that crashed with this part of its memory in use is taken to have run out of it."""

_TRIES = 4
"""Attempts to find a worker: an idle one may have died, by the out-of-memory killer for example, or have an older
recipe."""

_OUT_OF_MEMORY = ("out of memory", "bad_alloc", "memory exhausted", "allocate memory")


class CompileWorkers:
    """The workers of one device process. Implements `hearthd.device.compiler.images.Runner`."""

    def __init__(self, main: Main, limits: CompileLimits, *, confine: bool = True, unconfined: bool = True) -> None:
        """`main`: entry point of a worker, see `hearthd.device.broker.worker_entry`. `confine`: as far as the kernel
        can; without `unconfined`, a worker that it cannot confine gets no job."""
        self._main = main
        self._unconfined = unconfined
        self.limits = limits
        """Limits of one compile; another value applies from the next compile on."""
        self._confine = confine
        self._compiler: Compiler | None = None
        self._lock = threading.Lock()
        self._idle: list[CompileWorker] = []
        self._busy: list[CompileWorker] = []
        self._closed = False
        self._scratch: Scratch | None = None
        self._identity: bytes | None = None
        self._assembler: bytes | Refusal | None = None
        self.confined: str | None = None
        """Confinement of the workers from the host's files; empty: none; None: no worker has started yet."""
        self.report: Callable[[str], None] = lambda _what: None
        """Called, on a compile thread and once each, with the restrictions that the machine lacks."""

    def warm(self, start: Start = fresh) -> None:
        """Starts a worker ahead of its first job. Never raises: the first job reports a worker that cannot be
        started."""
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
        head, parts = protocol.pack_job(job)
        answer, code = self._ask(job, head, parts)
        if "reason" in answer:
            raise protocol.unpack_refusal(answer)
        return protocol.unpack_image(answer, code)

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
        """Returns the process ids of the workers."""
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
                refusal = protocol.unpack_refusal(answer)
                if refusal.reason is not Reason.NO_COMPILER:
                    raise refusal
                self._assembler = refusal
                self.report(f"{refusal.message} That stalls the device; install nvidia-nvjitlink")
            else:
                self._assembler = bytes.fromhex(answer["identity"])
        if isinstance(self._assembler, Refusal):
            raise self._assembler
        return self._assembler

    def _ask(self, job: Job | None, head: dict[str, Any], parts: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        for _ in range(_TRIES):
            with contextlib.suppress(WorkerNotStarted), self._worker(job) as worker:
                return self._asked(worker, head, parts)
        raise _not_started("each was gone before it had begun")

    def _asked(
        self, worker: CompileWorker, head: dict[str, Any], parts: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        limits = self.limits
        deadline = time.monotonic() + limits.seconds
        try:
            answer = worker.ask(head, parts, deadline, limits.file_bytes + protocol.MAX_HEAD)
        except TimeoutError:
            worker.kill()
            worker.end()
            raise (_cancelled() if worker.cancelled else limits.out_of_time()) from None
        except WorkerDied as died:
            raise (_cancelled() if worker.cancelled else self._crashed(died, worker)) from None
        except WorkerNotStarted:
            if worker.cancelled:
                raise _cancelled() from None
            raise
        if self._spent(worker, answer[0]):
            worker.kill()
            worker.end()
        return answer

    def _crashed(self, died: WorkerDied, worker: CompileWorker) -> Refusal:
        if disk.says_full(died.said):
            return disk.temporary()
        said = died.said.lower()
        grown = died.resident - worker.greeted()["resident"]  # what it was forked with is not the compile's
        if grown > _NEAR * self.limits.memory or any(words in said for words in _OUT_OF_MEMORY):
            return self.limits.out_of_memory()
        if died.status < 0:
            return self.limits.ended(-died.status, died.said)
        return Refusal(
            Reason.COMPILE_FAILED,
            f"The compiler ended with status {died.status} and no answer; nothing else is affected.",
            fix="change what is unusual in the source",
            details={"status": died.status, "log": died.said},
        )

    def _spent(self, worker: CompileWorker, answer: dict[str, Any]) -> bool:
        """True if the worker should be replaced: it has reached a limit, or holds much memory."""
        if answer.get("reason") in (Reason.COMPILE_LIMIT, Reason.INTERNAL):
            return True
        began = worker.greeted()["address_space"]
        return bool(answer.get("address_space", 0) - began > self.limits.memory // _GROWTH)

    @contextlib.contextmanager
    def _worker(self, job: Job | None) -> Iterator[CompileWorker]:
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
        """Starts another worker in the place of one that is gone, so that the next job need not wait for it."""
        with self._lock:
            wanted = not self._idle and not self._closed
        if wanted:
            self.warm()
            with contextlib.suppress(Exception):  # the next job meets the error again
                self.ready()

    def _taken(self, job: Job | None) -> CompileWorker:
        said = ""
        recipe = dict(self._of().recipe())
        for _ in range(_TRIES):
            worker = self._next(job)
            try:
                worker.greet(self._setup(worker, recipe))
                self._hear(worker.greeted())
                if worker.alive() and worker.recipe == recipe:
                    return worker
                worker.kill()
                said = worker.end().said
            except (WorkerDied, TimeoutError) as error:
                worker.kill()
                said = worker.end().said or str(error)
            except BaseException:
                self._drop(worker)
                raise
            self._drop(worker)
            if worker.cancelled:
                raise _cancelled()
        raise _not_started(said)

    def _hear(self, hello: dict[str, Any]) -> None:
        first, self.confined = self.confined is None, str(hello["confined"])
        if first and self._confine and not self.confined:
            self.report("no Landlock here: only the text of sources is checked for files of the host")
        if not self.confined and not self._unconfined:
            raise Refusal(
                Reason.NO_COMPILER,
                "The compile worker could not be confined (no Landlock), and tenants depend on it.",
                fix='run a kernel with Landlock, or set compile.tenants = "trusted" in the daemon\'s configuration',
            )

    def _next(self, job: Job | None) -> CompileWorker:
        with self._lock:
            if self._closed:
                raise _cancelled()
            try:
                worker = self._idle.pop() if self._idle else self._start()
            except OSError as error:
                raise (disk.temporary() if disk.is_full(error) else _not_started(str(error))) from error
            worker.job = job
            self._busy.append(worker)
            return worker

    def _drop(self, worker: CompileWorker) -> None:
        worker.kill()
        worker.end()
        with self._lock:
            self._busy.remove(worker)

    def _start(self, start: Start = fresh) -> CompileWorker:
        if self._scratch is None:
            self._scratch = Scratch("hearth-workers-")
        return CompileWorker(self._main, self._scratch.room(), start)

    def _setup(self, worker: CompileWorker, recipe: dict[str, Any]) -> dict[str, Any]:
        return {
            "recipe": recipe,
            "scratch": str(worker.scratch),
            "confine": self._confine,
            "seconds": self.limits.seconds,
            "memory": self.limits.memory,
            "file_bytes": self.limits.file_bytes,
        }


def _not_started(said: str) -> Refusal:
    if disk.says_full(said):
        return disk.temporary()
    return Refusal(
        Reason.INTERNAL,
        "No compile worker could be started, or stayed.",
        fix="look at the daemon's memory, its limits on processes, and its temporary directory",
        details={"log": said},
    )


def _cancelled() -> Refusal:
    return Refusal(Reason.CANCELLED, "the compile was stopped: no request waits for it any more")
