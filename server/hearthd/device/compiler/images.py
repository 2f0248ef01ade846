"""Images of compiled code: taken from the cache, otherwise made by the compile workers."""

from __future__ import annotations

from typing import Protocol

from hearthd.device.backend.compiler import Image, Job
from hearthd.device.compiler.cache import CompileCache, key
from hearthd.shared import disk


class Runner(Protocol):
    """Interface of a compiler of jobs: `hearthd.device.compiler.pool.CompileWorkers`.

    All methods except `cancel` and `close` are called on compile threads.
    """

    def ready(self) -> None:
        """Prepares for the first job."""
        ...

    def identity(self, job: Job) -> bytes:
        """Returns everything except the job that affects the result. Raises Refusal."""
        ...

    def run(self, job: Job) -> Image:
        """Compiles the job. Raises Refusal."""
        ...

    def release_idle(self) -> None:
        """Releases resources that are not needed while there is no work. Called after an idle period."""
        ...

    def cancel(self, job: Job) -> None:
        """Cancels a job that no request waits for any more. Does not block."""
        ...

    def close(self) -> None:
        """Stops all jobs, which then fail. Does not wait for them."""
        ...


class ImageSource(Protocol):
    """Source of images for a device process: `CachedImages` in the process itself, or a broker."""

    def ready(self) -> None:
        """Prepares for the first job. Called by each compile thread when it starts; may block; errors are ignored."""
        ...

    def image(self, job: Job) -> tuple[Image, bool]:
        """Returns the image, and True if a cache had it. Raises Refusal."""
        ...

    def release_idle(self) -> None:
        """Releases resources that are not needed while there is no work.

        Called on a compile thread after an idle period; its errors are ignored.
        """
        ...

    def cancel(self, job: Job) -> None:
        """Cancels a job that no request waits for any more; `image` then raises on its thread.

        Device-handle thread; must not block.
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
        self.ready, self.release_idle, self.cancel, self.close = (
            runner.ready,
            runner.release_idle,
            runner.cancel,
            runner.close,
        )

    def image(self, job: Job) -> tuple[Image, bool]:
        """Returns the image, and True if the cache had it. Raises Refusal."""
        try:
            return self._image(job)
        except OSError as error:
            if disk.is_full(error):
                raise disk.of_error(error, self._cache.directory) from error
            raise

    def _image(self, job: Job) -> tuple[Image, bool]:
        cache = self._cache
        name = key(job, self._runner.identity(job))
        image = cache.load(name)
        if image is not None:
            return image, True
        with cache.single_flight(name):
            image = cache.load(name)
            if image is not None:
                return image, True
            image = self._runner.run(job)
            cache.store(name, image)
            return image, False

    def pin(self, tenant: str) -> None:
        """Sets the tenant whose cache entries are used if the cache is divided."""
        self._cache.pin(tenant)
