"""Main program of a broker process: compiles, loads from the cache, and passes on segments, for its device process.

A keeper process is the parent of the broker. It is forked before the device process is confined. It forks the broker;
if the broker ends unexpectedly, the keeper forks another one and sends the device process the sockets that lead to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from hearth_proto import descriptors
from hearth_proto.reasons import Reason, Refusal
from hearthd.confinement import attributes
from hearthd.device.backend.compiler import Compiler
from hearthd.device.broker.client import Broker
from hearthd.device.broker.worker_entry import WORKERS
from hearthd.device.compiler import protocol
from hearthd.device.compiler.cache import CompileCache, cache_directory
from hearthd.device.compiler.cancel_token import CancelToken
from hearthd.device.compiler.images import CachedImages
from hearthd.device.compiler.limits import CompileLimits, internal_failure
from hearthd.device.compiler.pool import CompileWorkers
from hearthd.device.compiler.worker_process import fork_worker
from hearthd.device.platform.log import ProcessLog
from hearthd.device.platform.sandbox import adopt_orphans
from hearthd.device.platform.segment_exchange import SegmentExchange
from hearthd.shared import secret_file
from hearthd.shared.device_spec import DeviceSpec

_PR_SET_PDEATHSIG = 1
_DELAY_S = 0.05
"""Seconds until a lost broker is replaced. Doubled at each loss, up to `_MAX_DELAY_S`, if the broker lived less than
`_CALM_S`."""
_MAX_DELAY_S = 5.0
_CALM_S = 10.0
_MAX_REQUESTS = 64
"""Limit of concurrent requests other than compiles. A device process sends fewer unless a kernel forges requests;
beyond the limit, requests are not read, and no more compiles run at the same time than the device process itself would
run."""


def start_broker(spec: DeviceSpec) -> Broker:
    """Forks the keeper from this process, which still has only one thread and has not opened the device.

    Raises OSError.
    """
    link, keeper_link = socket.socketpair()
    files, keeper_files = descriptors.pair()
    renewals, keeper_renewals = descriptors.pair()
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        _run(
            parent,
            lambda: _Keeper(spec, keeper_renewals).run(keeper_link, keeper_files),
            keeper_link,
            keeper_files,
            keeper_renewals,
        )
    for end in (keeper_link, keeper_files, keeper_renewals):
        end.close()
    return Broker(link, files, renewals, pid)


def _run(parent: int, work: Callable[[], bool], *sockets: socket.socket) -> NoReturn:
    """Runs `work` in a process that was just forked from `parent`, and ends the process.

    The exit status is 0 if `work` returns True, otherwise 1.
    """
    ended_normally = False
    try:
        attributes.keep_descriptors([end.fileno() for end in sockets])
        _die_with(parent)
        ended_normally = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0 if ended_normally else 1)


class _Keeper:
    """Forks the broker, and another one each time a broker is lost. Has a single thread and holds no secret."""

    def __init__(self, spec: DeviceSpec, renewals: socket.socket) -> None:
        adopt_orphans()
        self._spec = spec
        self._renewals = renewals
        self._journal = ProcessLog(spec)

    def run(self, link: socket.socket, files: socket.socket) -> bool:
        """Returns True when the broker has ended on request or the device process is gone."""
        delay = _DELAY_S
        while True:
            began, keeper = time.monotonic(), os.getpid()
            child = os.fork()
            if not child:
                _run(keeper, partial(self._broker, link, files), link, files)
            link.close()
            files.close()
            status = self._wait(child)
            if status == 0:
                return True
            delay = _DELAY_S if time.monotonic() - began > _CALM_S else min(2 * delay, _MAX_DELAY_S)
            if self._device_process_ends(delay):
                return True
            self._journal.warning("broker_lost", status=status, action="another process replaces it")
            broker_end, link = socket.socketpair()
            broker_files, files = descriptors.pair()
            with broker_end, broker_files:
                descriptors.send(self._renewals, {}, (broker_end.fileno(), broker_files.fileno()))

    def _broker(self, link: socket.socket, files: socket.socket) -> bool:
        """Runs the broker in the process that was forked for it."""
        return BrokerRequests(self._spec, link, files).run()

    @staticmethod
    def _wait(child: int) -> int:
        """Waits for the broker; returns its exit status, negative for a signal.

        Also reaps the orphans that the keeper has adopted.
        """
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == child:
                return os.waitstatus_to_exitcode(status)

    def _device_process_ends(self, seconds: float) -> bool:
        """True if the device process is gone, or ends within `seconds`."""
        poll = select.poll()
        poll.register(self._renewals, 0)
        return bool(poll.poll(1000 * seconds))


def _die_with(parent: int) -> None:
    """Makes the kernel kill this process when the thread that forked it ends.

    That thread is the keeper's thread or the device-handle thread.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


class BrokerRequests:
    """Loop over requests. Each request that may block runs on a separate thread."""

    def __init__(self, spec: DeviceSpec, link: socket.socket, files: socket.socket) -> None:
        adopt_orphans()
        self._spec = spec
        self._link = link
        self._files = files
        self._sending = threading.Lock()
        self._tokens: dict[int, CancelToken] = {}
        limits = CompileLimits(spec.compile_timeout, spec.compile_memory)
        self._workers = CompileWorkers(WORKERS[spec.backend], limits, allow_unconfined=not spec.compile_confined)
        self._workers.warm(fork_worker)  # before any thread starts, and before the cache's key is read
        journal = ProcessLog(spec)
        self._workers.report = lambda lacking: journal.warning("compile_workers", lacking=lacking)
        self._images = CachedImages(self._workers, _cache(spec, journal))
        self._compiles = threading.BoundedSemaphore(
            2 * spec.compile_workers
        )  # same limit as `CompileQueue.max_running`
        self._free = threading.BoundedSemaphore(2 * spec.compile_workers + _MAX_REQUESTS)
        self._compiler_known = threading.Event()
        """Set when the compiler is known."""
        if spec.backend == "cpu":
            from hearthd.device.cpu.compiler import CpuCompiler

            self._cpu = CpuCompiler(spec.cache_dir)
            self._use(self._cpu)

    def _use(self, compiler: Compiler) -> None:
        self._workers.set_compiler(compiler)
        self._compiler_known.set()

    def run(self) -> bool:
        """Serves requests.

        Returns True when the device process has asked the broker to end, False when the device process is gone.
        """
        threading.Thread(target=self._serve_segments, name="segments", daemon=True).start()
        try:
            with contextlib.suppress(protocol.WorkerConnectionClosed):
                while True:
                    head, parts = protocol.receive(self._link, max_bytes=protocol.MAX_REQUEST)
                    if head.get("ask") == "close":
                        return True
                    self._take(head, parts)
                    del head, parts
        finally:
            self._images.close()
        return False

    def _take(self, head: dict[str, Any], parts: list[bytes]) -> None:
        match head.get("ask"):
            case "pin":
                self._images.pin(str(head.get("tenant", "")))
            case "cancel":
                token = self._tokens.get(head.get("which", 0))
                if token is not None:
                    token.cancel()
            case "recipe" if not self._compiler_known.is_set() and self._spec.backend == "cuda":
                from hearthd.device.cuda.compiler import CudaCompiler

                self._use(CudaCompiler.from_recipe(head["recipe"]))
            case asked:
                if asked == "image":  # before its thread starts, because the next message may cancel it
                    self._tokens[head.get("id", 0)] = CancelToken()
                self._free.acquire()
                threading.Thread(target=self._work, args=(head, parts), name="request", daemon=True).start()

    def _work(self, head: dict[str, Any], parts: list[bytes]) -> None:
        number = head.get("id", 0)
        answer: dict[str, Any]
        answer_parts: Sequence[bytes] = ()
        try:
            answer, answer_parts = self.answer(head, parts, number)
        except Refusal as refusal:
            answer = protocol.pack_refusal(refusal)
        except Exception as error:
            traceback.print_exc()
            answer = protocol.pack_refusal(internal_failure(error))
        self._free.release()
        with contextlib.suppress(protocol.WorkerConnectionClosed), self._sending:
            try:
                protocol.send(self._link, {**answer, "id": number}, answer_parts)
            except Refusal as refusal:  # the answer is too large
                protocol.send(self._link, {**protocol.pack_refusal(refusal), "id": number})

    def answer(self, head: dict[str, Any], parts: list[bytes], number: int) -> tuple[dict[str, Any], Sequence[bytes]]:
        """Returns the answer to one request, as head and parts. `number` is the id that names the request in "cancel".

        Runs on a separate thread for each request. Blocks until the compiler is known, and then for the duration of the
        work.

        Raises Refusal.
        """
        self._compiler_known.wait()
        match head.get("ask"):
            case "ready":
                self._images.ready()
                return {}, ()
            case "rest":
                self._images.release_idle()
                return {}, ()
            case "image":
                try:
                    job = protocol.unpack_job(head, parts)
                    parts.clear()
                    with self._compiles:
                        image, cached = self._images.image(job, self._tokens[number])
                finally:
                    self._tokens.pop(number, None)
                answer, code = protocol.pack_image(image)
                return {**answer, "cached": cached}, code
            case "library":
                return {}, [self._cpu.toolchain().library(str(head.get("name", ""))).read_bytes()]
        raise Refusal(Reason.INTERNAL, f"unknown request to the broker: {head.get('ask')!r}")

    # ---- segments ----

    def _serve_segments(self) -> None:
        segments = SegmentExchange()
        while True:
            try:
                message = descriptors.receive(self._files)
            except (OSError, ValueError):
                return
            if message is None:
                return
            body, files = message
            reply: dict[str, Any] = {"id": body.get("id")}
            fetched: list[int] = []
            try:
                nonce = bytes.fromhex(str(body.get("nonce", "")))
                match body.get("ask"):
                    case "keep" if len(files) == 1:
                        segments.keep(nonce, files[0])
                    case "drop":
                        segments.drop(nonce)
                    case "fetch":
                        fetched = [segments.fetch(nonce)]
            except (OSError, ValueError) as error:
                reply["errno"] = getattr(error, "errno", None) or 22
            with contextlib.suppress(OSError):
                descriptors.send(self._files, reply, fetched)
            for file in (*files, *fetched):
                os.close(file)


def _cache(spec: DeviceSpec, journal: ProcessLog) -> CompileCache:
    """Returns the compile cache. Without a key it stores nothing, because its entries could not be authenticated."""
    try:
        secret = secret_file.read(spec.cache_key) if spec.cache_key else b""
    except OSError as error:
        journal.warning("compile_cache", lacking=f"its key: {error}")
        secret = b""
    directory = cache_directory(spec.cache_dir) if secret else ""
    cache = CompileCache(directory, spec.cache_bytes, secret, spec.cache_divided)
    cache.report = lambda reason: journal.warning("disk_full", why=reason)
    return cache
