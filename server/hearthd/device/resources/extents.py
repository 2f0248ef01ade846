"""Ranges of one piece of memory: allocated first-fit; adjacent free ranges are merged."""

from __future__ import annotations

from bisect import bisect_left


class Extents:
    """The free ranges of `size` bytes. Offsets and lengths are multiples of `granularity`."""

    def __init__(self, size: int, granularity: int) -> None:
        self.size = size
        self._granularity = granularity
        self._starts = [0] if size else []
        self._lengths = [size] if size else []

    @property
    def free(self) -> int:
        """Number of free bytes, contiguous or not."""
        return sum(self._lengths)

    def rounded(self, size: int) -> int:
        """Returns the number of bytes that a request for `size` bytes takes."""
        return max(1, -(-size // self._granularity)) * self._granularity

    def allocate(self, size: int) -> int | None:
        """Takes a range of at least `size` bytes and returns its offset; None if no free range is long enough."""
        size = self.rounded(size)
        for index, length in enumerate(self._lengths):
            if length >= size:
                start = self._starts[index]
                if length == size:
                    del self._starts[index], self._lengths[index]
                else:
                    self._starts[index] += size
                    self._lengths[index] -= size
                return start
        return None

    def release(self, start: int, size: int) -> None:
        """Frees a range. Raises ValueError if part of the range is already free, or lies outside."""
        size = self.rounded(size)
        index = bisect_left(self._starts, start)
        before = index - 1
        overlaps = (index < len(self._starts) and start + size > self._starts[index]) or (
            before >= 0 and self._starts[before] + self._lengths[before] > start
        )
        if overlaps or start < 0 or start + size > self.size:
            raise ValueError(f"[{start}..{start + size}) is not in use")
        if index < len(self._starts) and start + size == self._starts[index]:
            self._starts[index] = start
            self._lengths[index] += size
        else:
            self._starts.insert(index, start)
            self._lengths.insert(index, size)
        if before >= 0 and self._starts[before] + self._lengths[before] == start:
            self._lengths[before] += self._lengths[index]
            del self._starts[index], self._lengths[index]
