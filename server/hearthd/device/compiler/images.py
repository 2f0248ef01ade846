"""Images of compiled code: taken from the cache, otherwise made by the compile workers."""

from __future__ import annotations

from typing import Protocol

from hearthd.device.backend.compiler import Image, Job
from hearthd.device.compiler.cache import CompileCache, key
from hearthd.device.compiler.cancel_token import CancelToken
from hearthd.device.compiler.pool import CompileWorkers
from hearthd.shared import disk


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
    """Implements `ImageSource` over compile workers and a cache."""

    def __init__(self, workers: CompileWorkers, cache: CompileCache) -> None:
        self._workers = workers
        self._cache = cache
        self.ready, self.release_idle, self.close = workers.ready, workers.release_idle, workers.close

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
        name = key(job, self._workers.identity(job))
        image = cache.load(name)
        if image is not None:
            return image, True
        with cache.single_flight(name, token.check):
            image = cache.load(name)
            if image is not None:
                return image, True
            image = self._workers.run(job, token)
            cache.store(name, image)
            return image, False

    def pin(self, tenant: str) -> None:
        """Sets the tenant whose cache entries are used if the cache is divided."""
        self._cache.pin(tenant)
