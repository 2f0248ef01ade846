"""Compile workers of a device process: runs jobs in them, stops them at their limits, and replaces them.

A worker runs one job at a time, and keeps its compiler loaded between jobs. A worker that crashes, or must be
stopped, fails only the job that it was running; the next job gets another worker. All methods may be called from any
thread and block; the device-handle thread calls only `warm` and `close`, which do not block.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Assembly, Compiler, Image, Job, LinkJob, Source
from hearthd.device.compiler import protocol
from hearthd.device.compiler.cancel_token import CancelToken, cancelled
from hearthd.device.compiler.limits import CompileLimits
from hearthd.device.compiler.worker_main import Main
from hearthd.device.compiler.worker_process import CompileWorker, Start, WorkerDied, WorkerNotStarted, spawn_worker
from hearthd.shared import disk
from hearthd.shared.scratch_dir import Scratch

_GROWTH = 4
"""A worker is replaced if its address space has grown by more than 1/`_GROWTH` of the memory limit."""

_EXHAUSTED_FRACTION = 0.75
"""A compiler that crashed with this fraction of its memory limit in use is assumed to have run out of memory."""

_TRIES = 4
"""Attempts to find a worker: an idle one may have died, for example by the out-of-memory killer, or have an older
recipe."""

_OUT_OF_MEMORY = ("out of memory", "bad_alloc", "memory exhausted", "allocate memory")


class CompileWorkers:
    """The workers of one device process."""

    def __init__(
        self, main: Main, limits: CompileLimits, *, confine: bool = True, allow_unconfined: bool = True
    ) -> None:
        """Sets up the pool without starting a worker.

        `main`: entry point of a worker, see `hearthd.device.broker.worker_entry`. `confine`: confine workers as far as
        the kernel supports it. `allow_unconfined`: if False, a worker that could not be confined gets no job.
        """
        self._main = main
        self._allow_unconfined = allow_unconfined
        self.limits = limits
        """Limits of one compile; a new value applies from the next compile on."""
        self._confine = confine
        self._compiler: Compiler | None = None
        self._lock = threading.Lock()
        self._idle: list[CompileWorker] = []
        self._busy: list[CompileWorker] = []
        self._closed = False
        self._scratch: Scratch | None = None
        self._identity: bytes | None = None
        self._identities: dict[str, bytes | Refusal] = {}
        """Results of `_identity_of`, by the name of the program."""
        self.confined: str | None = None
        """Confinement of the workers from the host's files; empty: the workers are not confined; None: no worker has
        started yet."""
        self.report: Callable[[str], None] = lambda _message: None
        """Called on a compile thread with a text about a restriction that this machine does not support, once for
        each."""

    def warm(self, start: Start = spawn_worker) -> None:
        """Starts a worker before its first job.

        Never raises: if the worker cannot be started, the first job reports that.
        """
        with contextlib.suppress(OSError), self._lock:
            if not self._closed:
                self._idle.append(self._start(start))

    def set_compiler(self, compiler: Compiler) -> None:
        """Sets the compiler of the jobs, which each worker creates from the compiler's recipe."""
        self._compiler = compiler

    # ---- jobs ----

    def ready(self) -> None:
        """Makes idle workers load their compiler."""
        recipe = dict(self._required_compiler().recipe())
        with self._lock:
            workers = list(self._idle)
        for worker in workers:
            worker.send_setup(self._setup_message(worker, recipe))

    def identity(self, job: Job) -> bytes:
        """Returns everything except the job that affects its result. Raises Refusal."""
        compiler = self._required_compiler()
        if isinstance(job, Assembly):
            return self._identity_of("assembler")
        if isinstance(job, LinkJob):
            return compiler.linker() if compiler.light else self._identity_of("linker")
        if compiler.light:
            return compiler.identity()
        if self._identity is None:
            with self._borrow(CancelToken()) as worker:
                self._identity = bytes.fromhex(worker.hello()["identity"])
        return self._identity

    def run(self, job: Job, token: CancelToken | None = None) -> Image:
        """Compiles the job; a cancellation kills the worker that runs it.

        Raises Refusal: the compiler's own, COMPILE_LIMIT, COMPILE_FAILED for a crash, CANCELLED, or that the compiler's
        files have been replaced.
        """
        compiler = self._required_compiler()
        try:
            for source in job.sources if isinstance(job, LinkJob) else (job,) if isinstance(job, Source) else ():
                compiler.prepare(source)
            answer, code = self._request(token or CancelToken(), *protocol.pack_job(job))
        finally:
            compiler.check_files()
        if "reason" in answer:
            raise protocol.unpack_refusal(answer)
        return protocol.unpack_image(answer, code)

    def release_idle(self) -> None:
        """Ends idle workers except one. Called after an idle period."""
        with self._lock:
            spare, self._idle = self._idle[:-1], self._idle[-1:]
        for worker in spare:
            worker.stop()

    def close(self) -> None:
        """Kills all workers immediately, without waiting for their jobs."""
        with self._lock:
            self._closed = True
            busy, idle = list(self._busy), self._idle
            self._idle = []
            scratch, self._scratch = self._scratch, None
        for worker in (*busy, *idle):
            worker.cancel()
        for worker in idle:
            worker.end()
        if scratch is not None:
            scratch.close()

    def pids(self) -> list[int]:
        """Returns the process IDs of the workers."""
        with self._lock:
            return [worker.pid for worker in (*self._idle, *self._busy)]

    # ---- inside ----

    def _required_compiler(self) -> Compiler:
        assert self._compiler is not None, "a job arrived before the compiler was set"
        return self._compiler

    def _identity_of(self, program: str) -> bytes:
        """Returns the identity of the "assembler" or the "linker", which a worker states.

        Raises Refusal: the worker's own; that there is no assembler is remembered, and reported once.
        """
        known = self._identities.get(program)
        if known is None:
            answer, _ = self._request(CancelToken(), {"job": program}, [])
            if "reason" in answer:
                known = protocol.unpack_refusal(answer)
                if program != "assembler" or known.reason is not Reason.NO_COMPILER:
                    raise known
                self.report(f"{known.message} That stalls the device; install nvidia-nvjitlink")
            else:
                known = bytes.fromhex(answer["identity"])
            self._identities[program] = known
        if isinstance(known, Refusal):
            raise known
        return known

    def _request(
        self, token: CancelToken, head: dict[str, Any], parts: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Sends a request to a worker and returns its answer. Tries another worker if one exits before it starts.

        Raises Refusal.
        """
        for _ in range(_TRIES):
            with contextlib.suppress(WorkerNotStarted), self._borrow(token) as worker:
                return self._exchange(worker, head, parts)
        raise _not_started("each ended before it was ready")

    def _exchange(
        self, worker: CompileWorker, head: dict[str, Any], parts: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Sends a request to this worker and returns its answer within the limits.

        Ends the worker if it exceeds them or is worn out. Raises Refusal, WorkerNotStarted.
        """
        limits = self.limits
        deadline = time.monotonic() + limits.seconds
        try:
            answer = worker.request(head, parts, deadline, limits.file_bytes + protocol.MAX_HEAD)
        except TimeoutError:
            worker.stop()
            raise (cancelled() if worker.cancelled else limits.out_of_time()) from None
        except WorkerDied as died:
            raise (cancelled() if worker.cancelled else self._crash_refusal(died, worker)) from None
        except WorkerNotStarted:
            if worker.cancelled:
                raise cancelled() from None
            raise
        # A link with duplicate symbols, which not every format shows, leaves nvJitLink's process in a bad state.
        if head["job"] == "link" or self._is_worn_out(worker, answer[0]):
            worker.stop()
        return answer

    def _crash_refusal(self, died: WorkerDied, worker: CompileWorker) -> Refusal:
        if disk.says_full(died.log):
            return disk.temporary()
        output = died.log.lower()
        # the memory that it had when it was forked is not part of the compile
        grown = died.resident - worker.hello()["resident"]
        if grown > _EXHAUSTED_FRACTION * self.limits.memory or any(words in output for words in _OUT_OF_MEMORY):
            return self.limits.out_of_memory()
        if died.status < 0:
            return self.limits.ended_by_signal(-died.status, died.log)
        return Refusal(
            Reason.COMPILE_FAILED,
            f"The compiler ended with status {died.status} and no answer; nothing else is affected.",
            fix="simplify unusual constructs in the source",
            details={"status": died.status, "log": died.log},
        )

    def _is_worn_out(self, worker: CompileWorker, answer: dict[str, Any]) -> bool:
        """True if the worker should be replaced, because it has reached a limit or holds much memory."""
        if answer.get("reason") in (Reason.COMPILE_LIMIT, Reason.INTERNAL):
            return True
        initial = worker.hello()["address_space"]
        return bool(answer.get("address_space", 0) - initial > self.limits.memory // _GROWTH)

    @contextlib.contextmanager
    def _borrow(self, token: CancelToken) -> Iterator[CompileWorker]:
        """Provides a ready worker for one job, and takes it back afterwards. A cancellation by the token kills it.

        Raises Refusal if no worker can be started, or if the job has been cancelled.
        """
        token.check()
        worker = self._acquire(token)
        try:
            with token.on_cancel(worker.cancel):
                yield worker
        finally:
            with self._lock:
                self._busy.remove(worker)
                is_reusable = worker.alive() and not self._closed and not worker.cancelled
                if is_reusable:
                    self._idle.append(worker)
            if not is_reusable:
                worker.stop()
                self._replace()

    def _replace(self) -> None:
        """Starts another worker in place of one that ended, so that the next job need not wait for its start."""
        with self._lock:
            is_needed = not self._idle and not self._closed
        if is_needed:
            self.warm()
            with contextlib.suppress(Exception):  # the next job encounters and reports the same error
                self.ready()

    def _acquire(self, token: CancelToken) -> CompileWorker:
        """Returns a worker, marked as busy, that has loaded the current compiler. Raises Refusal."""
        log = ""
        recipe = dict(self._required_compiler().recipe())
        for _ in range(_TRIES):
            worker = self._start_or_reuse()
            error = ""
            try:
                with token.on_cancel(worker.cancel):
                    worker.send_setup(self._setup_message(worker, recipe))
                    self._check_confinement(worker.hello())
                if worker.alive() and worker.recipe == recipe:
                    return worker
            except (WorkerDied, TimeoutError) as failure:
                error = str(failure)
            except BaseException:
                self._discard(worker)
                raise
            log = self._discard(worker).log or error
            if worker.cancelled:
                raise cancelled()
        raise _not_started(log)

    def _check_confinement(self, hello: dict[str, Any]) -> None:
        """Records the confinement that a worker's first message states; reports it if the first worker has none.

        Raises Refusal(NO_COMPILER) if the worker is unconfined and only confined workers may run jobs.
        """
        is_first, self.confined = self.confined is None, str(hello["confined"])
        if is_first and self._confine and not self.confined:
            self.report("no Landlock here: only the text of sources is checked for files of the host")
        if not self.confined and not self._allow_unconfined:
            raise Refusal(
                Reason.NO_COMPILER,
                "The compile worker could not be confined (no Landlock), and tenants depend on it.",
                fix='run a kernel with Landlock, or set compile.tenants = "trusted" in the daemon\'s configuration',
            )

    def _start_or_reuse(self) -> CompileWorker:
        """Returns an idle worker or a new one, marked as busy. Raises Refusal."""
        with self._lock:
            if self._closed:
                raise cancelled()
            try:
                worker = self._idle.pop() if self._idle else self._start()
            except OSError as error:
                raise (disk.temporary() if disk.is_full(error) else _not_started(str(error))) from error
            self._busy.append(worker)
            return worker

    def _discard(self, worker: CompileWorker) -> WorkerDied:
        died = worker.stop()
        with self._lock:
            self._busy.remove(worker)
        return died

    def _start(self, start: Start = spawn_worker) -> CompileWorker:
        if self._scratch is None:
            self._scratch = Scratch("hearth-workers-")
        return CompileWorker(self._main, self._scratch.room(), start)

    def _setup_message(self, worker: CompileWorker, recipe: dict[str, Any]) -> dict[str, Any]:
        return {
            "recipe": recipe,
            "scratch": str(worker.scratch),
            "confine": self._confine,
            "seconds": self.limits.seconds,
            "memory": self.limits.memory,
            "file_bytes": self.limits.file_bytes,
        }


def _not_started(log: str) -> Refusal:
    if disk.says_full(log):
        return disk.temporary()
    return Refusal(
        Reason.INTERNAL,
        "No compile worker could be started, or each ended immediately.",
        fix="check the daemon's memory, its limits on processes, and its temporary directory",
        details={"log": log},
    )
