"""Large arrays on their way: the command that writes or reads them has its place among the others, their bytes travel
beside it, in a thread."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hearth import bulk
from hearth.errors import HearthError
from hearth.one_way import heard_otherwise

if TYPE_CHECKING:
    from hearth.aio.home import Home
    from hearth.aio.road import LoopAttachment, LoopConnection
    from hearth.progress import Progress
    from hearth.reply import Reply
    from hearth.transfer import Part


def in_loop(home: Home, report: Progress | None) -> Progress | None:
    """Called in whichever thread, it reports in the loop."""
    if report is None:
        return None
    return lambda done, total: home.later(partial(report, done, total))


# ---- up ----


def upload(
    connection: LoopConnection, attachment: LoopAttachment, part: Part, data: memoryview, report: Progress | None
) -> None:
    """Takes the bytes, and has them written in the order of the stream. What goes wrong is told by the next await that
    reports errors. Raises `QuotaExceededError` where too many are on their way."""
    size = len(data)
    connection.take_on(size)
    try:
        taken = memoryview(bytes(data))  # the caller's may change as soon as this returns
        reply, number = bulk.begin_upload(connection, attachment, part, size)
    except BaseException:
        connection.put_down(size)
        raise
    report = in_loop(connection.home, report)
    work = connection.home.uploads.run(partial(_carry, connection, attachment, reply, number, taken, report))
    work.add_done_callback(lambda _: connection.put_down(size))


def _carry(
    connection: LoopConnection,
    attachment: LoopAttachment,
    reply: Reply,
    number: int,
    data: memoryview,
    report: Progress | None,
) -> None:
    reply.on_late_error = partial(_told, connection, attachment)
    reply.abandon()  # so that its error is known before the answer of a synchronize that comes behind it
    try:
        attachment.wait_opened()
        bulk.carry_upload(connection, attachment, reply, number, data, report)
    except HearthError as error:
        if reply.error is None and not connection.refusal:
            _told(connection, attachment, error)


def _told(connection: LoopConnection, attachment: LoopAttachment, error: HearthError) -> None:
    """Keeps an error for the next await that reports."""
    if not heard_otherwise(attachment, error):
        connection.defer(error)


# ---- down ----


class _Download:
    """Goes to its end whether or not anybody waits for it: the daemon keeps the bytes until they are taken, and what
    comes behind the read waits for that."""

    def __init__(self, into: memoryview, ours: bool) -> None:
        self._lock = threading.Lock()
        self._into = into
        self._scratch = into if ours else memoryview(np.empty(len(into), np.uint8))  # type: ignore[arg-type]
        self._dropped = False

    def drop(self) -> None:
        """Nothing is written to the caller's memory any more."""
        with self._lock:
            self._dropped = True

    def carry(
        self,
        connection: LoopConnection,
        attachment: LoopAttachment,
        reply: Reply,
        number: int,
        report: Progress | None,
    ) -> None:
        attachment.wait_opened()
        bulk.carry_download(connection, attachment, reply, number, self._scratch, None, report)
        with self._lock:
            if self._scratch is not self._into and not self._dropped:
                self._into[:] = self._scratch


async def download(
    connection: LoopConnection,
    attachment: LoopAttachment,
    part: Part,
    into: memoryview,
    timeout: float | None,
    report: Progress | None,
    *,
    ours: bool,
) -> None:
    """Reads bytes into memory, which nothing is written to once this returns or raises; `ours`: nobody else knows that
    memory, so that it is no matter."""
    home = connection.home
    carried = _Download(into, ours)
    reply, number = bulk.begin_download(connection, attachment, part, len(into))
    report = in_loop(home, report)
    work = home.downloads.run(partial(carried.carry, connection, attachment, reply, number, report))
    try:
        await home.over(work, timeout)
        if not work.done():
            raise reply.given_up(timeout)
    except BaseException:
        reply.abandon()
        carried.drop()
        raise
    work.result()
