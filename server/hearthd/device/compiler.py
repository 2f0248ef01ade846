"""Compiles off the device-handle thread; each source once, however many ask (single flight)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.compile_cache import CompileCache, key
from hearthd.device.server import Compiler, Image, Source

MEMORY_ENTRIES = 256


@dataclass(frozen=True)
class Compiled:
    """How a compile ended: an image or a refusal, whether a cache had it, and how long it took."""

    image: Image | None
    error: Refusal | None
    cached: bool
    elapsed_ns: int


Callback = Callable[[Compiled], None]


class CompileService:
    """`submit` and the callbacks belong to the device-handle thread; the work is done on compile threads."""

    def __init__(
        self, compiler: Compiler, cache: CompileCache, workers: int, post: Callable[[Callable[[], None]], None]
    ) -> None:
        self._compiler = compiler
        self._cache = cache
        self._post = post
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="compile")
        self._memory: dict[Source, Image] = {}
        self._flights: dict[Source, list[Callback]] = {}

    def submit(self, source: Source, callback: Callback) -> None:
        """`callback` on the device-handle thread; at once where the image is in memory."""
        image = self._memory.pop(source, None)
        if image is not None:
            self._memory[source] = image  # the last of the dict is the one used last
            callback(Compiled(image, None, True, 0))
            return
        waiting = self._flights.get(source)
        if waiting is not None:
            waiting.append(callback)
            return
        self._flights[source] = [callback]
        self._pool.submit(self._work, source)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, source: Source) -> None:
        started = time.perf_counter_ns()
        cached = False
        image: Image | None = None
        error: Refusal | None = None
        try:
            name = key(source, self._compiler.identity())
            image = self._cache.load(name)
            cached = image is not None
            if image is None:
                with self._cache.single_flight(name):
                    image = self._cache.load(name)
                    cached = image is not None
                    if image is None:
                        image = self._compiler.compile(source)
                        self._cache.store(name, image)
        except Refusal as refusal:
            error = refusal
        except Exception as unexpected:  # a compiler's own failure is the module's, never the device's
            error = Refusal(Reason.INTERNAL, f"the compiler failed: {type(unexpected).__name__}: {unexpected}")
        elapsed = 0 if cached else time.perf_counter_ns() - started
        outcome = Compiled(image, error, cached, elapsed)
        self._post(lambda: self._landed(source, outcome))

    def _landed(self, source: Source, outcome: Compiled) -> None:
        if outcome.image is not None:
            self._memory[source] = outcome.image
            while len(self._memory) > MEMORY_ENTRIES:
                del self._memory[next(iter(self._memory))]
        joined = dataclasses.replace(outcome, cached=outcome.image is not None, elapsed_ns=0)
        for index, callback in enumerate(self._flights.pop(source, ())):
            callback(joined if index else outcome)  # one of them had it compiled; for the others it was there
