"""Images of compiled code: taken from the cache, otherwise made by the compile workers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Image, Job
from hearthd.device.compiler.cache import CompileCache, key
from hearthd.shared import disk


class CancelToken:
    """Cancels one compile at any time: before a worker has the job, while it runs, and afterwards. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._stop: Callable[[], None] | None = None

    def cancel(self) -> None:
        """Cancels the compile. Does not block."""
        with self._lock:
            self._cancelled = True
            if self._stop is not None:
                self._stop()

    def check(self) -> None:
        """Raises Refusal(CANCELLED) if the compile has been cancelled."""
        if self._cancelled:
            raise cancelled()

    @contextlib.contextmanager
    def on_cancel(self, stop: Callable[[], None]) -> Iterator[None]:
        """Calls `stop`, which must not block, if the compile is cancelled in this context, or has been before.

        It is called on the thread that cancels, and never after the context. Contexts of one token do not nest.
        """
        with self._lock:
            self._stop = stop
            if self._cancelled:
                stop()
        try:
            yield
        finally:
            with self._lock:
                self._stop = None


def cancelled() -> Refusal:
    """Returns the refusal of a cancelled compile."""
    return Refusal(Reason.CANCELLED, "the compile was stopped: no request waits for it any more")


class Runner(Protocol):
    """Interface of a compiler of jobs: `hearthd.device.compiler.pool.CompileWorkers`.

    All methods except `close` are called on compile threads.
    """

    def ready(self) -> None:
        """Prepares for the first job."""
        ...

    def identity(self, job: Job) -> bytes:
        """Returns everything except the job that affects the result. Raises Refusal."""
        ...

    def run(self, job: Job, token: CancelToken) -> Image:
        """Compiles the job, unless it is cancelled by the token. Raises Refusal."""
        ...

    def release_idle(self) -> None:
        """Releases resources that are not needed while there is no work. Called after an idle period."""
        ...

    def close(self) -> None:
        """Stops all jobs, which then fail. Does not wait for them."""
        ...


class ImageSource(Protocol):
    """Source of images for a device process: `CachedImages` in the process itself, or a broker."""

    def ready(self) -> None:
        """Prepares for the first job. Called by each compile thread when it starts; may block; errors are ignored."""
        ...

    def image(self, job: Job, token: CancelToken) -> tuple[Image, bool]:
        """Returns the image, and True if a cache had it. Raises Refusal, also if the token cancels the compile."""
        ...

    def release_idle(self) -> None:
        """Releases resources that are not needed while there is no work.

        Called on a compile thread after an idle period; its errors are ignored.
        """
        ...

    def pin(self, tenant: str) -> None:
        """Attributes all later jobs to the tenant. Only the first call has an effect."""
        ...

    def close(self) -> None:
        """Stops all jobs, because the process ends. Device-handle thread."""
        ...


class CachedImages:
    """Implements `ImageSource` over a runner and a cache."""

    def __init__(self, runner: Runner, cache: CompileCache) -> None:
        self._runner = runner
        self._cache = cache
        self.ready, self.release_idle, self.close = runner.ready, runner.release_idle, runner.close

    def image(self, job: Job, token: CancelToken) -> tuple[Image, bool]:
        """Returns the image, and True if the cache had it. Raises Refusal, also if the token cancels the compile."""
        try:
            return self._image(job, token)
        except OSError as error:
            if disk.is_full(error):
                raise disk.of_error(error, self._cache.directory) from error
            raise

    def _image(self, job: Job, token: CancelToken) -> tuple[Image, bool]:
        cache = self._cache
        name = key(job, self._runner.identity(job))
        image = cache.load(name)
        if image is not None:
            return image, True
        with cache.single_flight(name, token.check):
            image = cache.load(name)
            if image is not None:
                return image, True
            image = self._runner.run(job, token)
            cache.store(name, image)
            return image, False

    def pin(self, tenant: str) -> None:
        """Sets the tenant whose cache entries are used if the cache is divided."""
        self._cache.pin(tenant)
