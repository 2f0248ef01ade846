"""Images in memory, by the job that they were made from: the most recently used ones, limited in number and bytes."""

from __future__ import annotations

from hearthd.device.backend.compiler import Assembly, Image, Job, LinkJob

ENTRIES = 256
BYTES = 256 << 20


class ImageStore:
    """LRU store of images. Not thread-safe: used by one thread only."""

    def __init__(self, entries: int = ENTRIES, size: int = BYTES) -> None:
        self._entries = entries
        self._limit = size
        self._images: dict[Job, Image] = {}
        self.size = 0
        """Total size in bytes of the images and of their jobs, which are stored as keys."""

    def __len__(self) -> int:
        return len(self._images)

    def get(self, job: Job) -> Image | None:
        """Returns the image of a job and makes it the most recently used one; None if it is not stored."""
        image = self._images.pop(job, None)
        if image is not None:
            self._images[job] = image  # the end of the dict is the most recently used image
        return image

    def put(self, job: Job, image: Image) -> None:
        """Stores an image, and removes the least recently used ones if there is no room.

        An image larger than the limit is not stored.
        """
        previous = self._images.pop(job, None)
        if previous is not None:
            self.size -= _size(job, previous)
        size = _size(job, image)
        if size > self._limit:
            return
        self._images[job] = image
        self.size += size
        while len(self._images) > self._entries or self.size > self._limit:
            oldest = next(iter(self._images))
            self.size -= _size(oldest, self._images.pop(oldest))


def _size(job: Job, image: Image) -> int:
    image_bytes = len(image.code) + len(image.log) + sum(len(key) + len(value) for key, value in image.names.items())
    return image_bytes + _job_size(job)


def _job_size(job: Job) -> int:
    if isinstance(job, Assembly):
        return len(job.code)
    if isinstance(job, LinkJob):
        return sum(map(_job_size, job.inputs))
    texts = (job.code, *job.options, *job.name_expressions, *(text for header in job.headers for text in header))
    return sum(map(len, texts))
