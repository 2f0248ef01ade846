"""Maps and page-locks segments, and unmaps them, on a separate thread that may block.

Page-locking takes milliseconds, and so does clearing pages at their first use. Both are done in parts, alternating
between segments, so that a large segment does not delay a small one. The standard library's `mmap` would hold the
interpreter lock meanwhile, and a descriptor for as long as the memory is mapped, so the C library is called directly.
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.flows.segment_policy import parts

PAUSE_S = 0.3e-3
"""Pause, in seconds, between two parts that are locked. CUDA holds a lock while it locks a part, and a thread that
returns immediately takes the lock before other waiting threads. Without a pause, locking would delay the device-handle
thread for the whole segment."""

Post = Callable[[Callable[[], None]], None]
Work = Iterator[None]
Mapped = Callable[[int, int, str], None]
"""Called with the address, the number of leading bytes that are page-locked, and the reason why the rest is not ("" if
all bytes are)."""

_MADV_POPULATE_WRITE = 23
"""Available since Linux 5.14."""
_MADV_DONTDUMP = 16
_UNKNOWN = (errno.EINVAL, errno.ENOSYS)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = ctypes.c_void_p(-1).value


class SegmentMapper:
    """Maps and unmaps segments.

    `map` and `unmap` must be called on the device-handle thread; their callbacks run there too, through `post`.
    `register` and `unregister` lock and unlock pages; they may block, and raise if the system refuses.
    """

    def __init__(
        self, register: Callable[[int, int], None], unregister: Callable[[int, int], None], post: Post
    ) -> None:
        self._register = register
        self._unregister = unregister
        self._post = post
        self._arrived: SimpleQueue[tuple[bool, Work]] = SimpleQueue()
        self._started = False
        self._locked_at = -math.inf
        """Time at which the last part was locked, in seconds (`time.monotonic`)."""

    def map(
        self, file: int, size: int, is_wanted: Callable[[], bool], done: Mapped, failed: Callable[[Refusal], None]
    ) -> None:
        """Maps `size` bytes of a memfd, and page-locks as many of them as the system allows.

        Stops as soon as `is_wanted()`, which is called on the mapper's thread, returns False. Takes ownership of the
        descriptor.
        """
        self._begin(self._map(file, size, is_wanted, done, failed))

    def unmap(
        self, address: int, size: int, locked: int, unlocked: Callable[[], None], done: Callable[[], None]
    ) -> None:
        """Unlocks and unmaps a segment. Calls `unlocked` as soon as the pages are unlocked, and `done` at the end."""
        self._begin(self._unmap(address, size, locked, unlocked, done), first=True)

    def _begin(self, work: Work, *, first: bool = False) -> None:
        """Queues work for the thread.

        `first` puts it before all work under way, because launches are held back while pages are unlocked.
        """
        if not self._started:
            self._started = True
            threading.Thread(target=self._run, name="segments", daemon=True).start()
        self._arrived.put((first, work))

    # ---- the thread ----

    def _run(self) -> None:
        jobs: deque[Work] = deque()
        while True:
            while not jobs or not self._arrived.empty():
                first, new_job = self._arrived.get()
                if first:
                    jobs.appendleft(new_job)
                else:
                    jobs.append(new_job)
            job = jobs.popleft()
            try:
                next(job)
            except StopIteration:
                continue
            except Exception:  # an internal error fails this segment only
                traceback.print_exc()
                continue
            jobs.append(job)

    def _map(
        self, file: int, size: int, is_wanted: Callable[[], bool], done: Mapped, failed: Callable[[Refusal], None]
    ) -> Work:
        try:
            address = _map(file, size)
        except OSError as error:
            self._post(partial(failed, _refused(size, error)))
            return
        finally:
            os.close(file)
        for start, length in parts(size):  # before any page is locked, because unlocking needs an idle device
            if not is_wanted():
                break
            try:
                _populate(address + start, length)
            except OSError as error:
                _libc.munmap(address, size)
                self._post(partial(failed, _refused(size, error)))
                return
            yield
        locked, reason = 0, ""
        for start, length in parts(size):
            if not is_wanted():
                break
            self._pause()
            try:
                self._register(address + start, length)
            except Exception as error:  # the device-handle thread reports a failed device
                reason = str(error) or type(error).__name__
                break
            finally:
                self._locked_at = time.monotonic()
            locked += length
            yield
        self._post(partial(done, address, locked, reason))

    def _pause(self) -> None:
        remaining = self._locked_at + PAUSE_S - time.monotonic()
        if remaining > 0:
            time.sleep(remaining)

    def _unmap(
        self, address: int, size: int, locked: int, unlocked: Callable[[], None], done: Callable[[], None]
    ) -> Work:
        is_unlocked = self._unlock(address, locked)
        self._post(unlocked)
        if is_unlocked:
            yield
            for start, length in parts(size):
                _libc.munmap(address + start, length)
                yield
        self._post(done)

    def _unlock(self, address: int, locked: int) -> bool:
        """Unlocks the pages.

        Returns False if the device has failed. In that case the device-handle thread reports the failure and the
        process ends; until then, locked pages must stay mapped.
        """
        for start, length in parts(locked):
            try:
                self._unregister(address + start, length)
            except Exception:
                return False
        return True


def _map(file: int, size: int) -> int:
    address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
    if address is None or address == _FAILED:
        raise _error()
    _libc.madvise(address, size, mmap.MADV_DONTFORK)
    _libc.madvise(address, size, _MADV_DONTDUMP)  # the memory belongs to the client
    return int(address)


def _populate(address: int, size: int) -> None:
    """Allocates every page, so that no copy faults because memory is short.

    Older kernels allocate pages when they are locked.
    """
    if _libc.madvise(address, size, _MADV_POPULATE_WRITE):
        error = _error()
        if error.errno not in _UNKNOWN:
            raise error


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def _refused(size: int, error: OSError) -> Refusal:
    if error.errno in (errno.EACCES, errno.EPERM):
        return Refusal(
            Reason.INVALID_ARGUMENT,
            f"a segment of {size} bytes cannot be mapped for reading and writing: {error.strerror}",
            fix="pass the descriptor that memfd_create returned, without a seal against writing",
        )
    return Refusal(
        Reason.OUT_OF_MEMORY,
        f"a segment of {size} bytes cannot be mapped: {error.strerror}",
        fix="share less memory",
        details={"requested": size},
    )
