"""Large arrays in transit: the command that writes or reads them has its place among the others, and their bytes go
beside it.

On the daemon's host they go by shared memory (`hearth.transfer.registered`): a thread only says where they are, which
waits for no device, and copies downloads to their destination. Elsewhere a thread carries them.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from hearth import lazy_numpy as np
from hearth.errors import HearthError
from hearth.session.one_way import heard_otherwise
from hearth.transfer import registered, router

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth.aio.connection import LoopAttachment, LoopConnection
    from hearth.aio.event_loop import Home
    from hearth.aio.thread_pool import Work
    from hearth.progress import Progress
    from hearth.session.attachment import Attachment
    from hearth.session.reply import Reply
    from hearth.transfer.plan import BufferPart


class _Carried:
    """The transfer of one array, and the reply to its command."""

    def __init__(
        self,
        connection: LoopConnection,
        attachment: LoopAttachment,
        reply: Reply,
        number: int,
        report: Progress | None,
    ) -> None:
        self._connection = connection
        self._attachment = attachment
        self._reply = reply
        self._number = number
        self._report = None if report is None else _in_loop(connection.home, report)
        self._lock = threading.Lock()


def _in_loop(home: Home, report: Progress) -> Progress:
    """A progress callback that any thread may call, and that reports in the loop."""
    return lambda done, total: home.later(partial(report, done, total))


# ---- up ----


def upload(
    connection: LoopConnection, attachment: LoopAttachment, part: BufferPart, data: memoryview, report: Progress | None
) -> None:
    """Writes bytes in the order of the stream: they are copied, unless they lie in memory that can be shared.

    An error is reported by the next await that reports errors. Raises `QuotaExceededError` where too many bytes are on
    their way.
    """
    size = len(data)
    connection.take_on(size)
    try:
        if not (registered.shareable(data) and registered.likely(connection, attachment)):
            data = registered.taken(connection, attachment, data)  # the caller's may change as soon as this returns
        reply, number = router.begin_upload(connection, attachment, part, size)
    except BaseException:
        connection.put_down(size)
        raise
    up = _Upload(connection, attachment, reply, number, report, size, lambda: data)
    connection.home.uploads.run(up.carry)


def upload_read(
    connection: LoopConnection,
    attachment: LoopAttachment,
    part: BufferPart,
    size: int,
    read: Callable[[memoryview], None],
) -> None:
    """Writes bytes in the order of the stream that a thread reads first: `read` fills the host memory that it is given,
    and may block.

    An error of `read` is kept for the next await that reports errors, and the write fails. Raises
    `QuotaExceededError` where too many bytes are on their way.
    """
    connection.take_on(size)
    try:
        reply, number = router.begin_upload(connection, attachment, part, size)
    except BaseException:
        connection.put_down(size)
        raise

    def source() -> memoryview:
        memory = registered.memory(size) if registered.likely(connection, attachment) else None
        if memory is None:
            memory = memoryview(bytearray(size))
        read(memory)
        return memory

    up = _Upload(connection, attachment, reply, number, None, size, source)
    connection.home.uploads.run(up.carry)


class _Upload(_Carried):
    """An upload. The session, which waits for the answer, holds it, and it holds the bytes."""

    def __init__(
        self,
        connection: LoopConnection,
        attachment: LoopAttachment,
        reply: Reply,
        number: int,
        report: Progress | None,
        size: int,
        source: Callable[[], memoryview],
    ) -> None:
        """`source` returns the bytes; it is called by a thread, once."""
        super().__init__(connection, attachment, reply, number, report)
        self._source: Callable[[], memoryview] | None = source
        self._data: memoryview | None = None
        """The bytes, until the write is answered."""
        self._size = size
        reply.on_late_error = partial(_told, connection, attachment)
        reply.abandon()  # so that its error is known before the answer of a synchronize that comes behind it
        reply.on_answer = self._answered
        if reply.answered:
            self._answered()

    def _answered(self) -> None:
        """Called when the bytes are not needed any more, by the device either."""
        with self._lock:
            source, self._source, self._data = self._source, None, None
        if source is not None:
            self._connection.put_down(self._size)

    def carry(self) -> None:
        """Has the bytes taken from shared memory, or carries them; called in a thread."""
        connection, attachment, reply, source = self._connection, self._attachment, self._reply, self._source
        if source is None:
            return
        try:
            attachment.wait_opened()
            data = self._read(source)
            with self._lock:
                if self._source is None:
                    return  # it has failed meanwhile, which the answer reports
                self._data = data
            if registered.upload(connection, attachment, self._number, data) is None:
                router.carry_upload(connection, attachment, reply, self._number, data, self._report)
            elif self._report is not None:
                self._report(self._size, self._size)
        except HearthError as error:
            if reply.error is None and not connection.refusal:
                _told(connection, attachment, error)

    def _read(self, source: Callable[[], memoryview]) -> memoryview:
        """Returns the bytes. If `source` fails, cancels the transfer at the daemon, which would wait for them."""
        try:
            return source()
        except BaseException as error:  # MemoryError, for one
            from hearth.transfer.grpc_stream import give_up

            self._reply.on_late_error = None  # this error is the cause
            give_up(self._connection, self._number)
            if isinstance(error, HearthError):
                raise
            raise HearthError(f"the upload was given up: {error!r}.", reason="CANCELLED", fix="try again.") from error


def _told(connection: LoopConnection, attachment: LoopAttachment, error: HearthError) -> None:
    """Keeps an error for the next await that reports."""
    if not heard_otherwise(attachment, error):
        connection.defer(error)


# ---- down ----


class _Download(_Carried):
    """A download. It completes whether or not a task waits for it: the daemon keeps the bytes until they are taken, and
    work behind the read waits for that.
    """

    def __init__(
        self,
        connection: LoopConnection,
        attachment: LoopAttachment,
        reply: Reply,
        number: int,
        report: Progress | None,
        into: memoryview,
        *,
        ours: bool,
    ) -> None:
        super().__init__(connection, attachment, reply, number, report)
        self._into = into
        self._ours = ours
        self._from: memoryview | None = None
        """Receive buffer, copied to the caller's memory afterwards; the device writes to it while it is shared."""
        self._dropped = self._landing = False

    def begin(self) -> bool:
        """Begins, in a thread; True if the bytes will be in shared memory when the read is answered, else they have
        come.
        """
        size = len(self._into)
        there = registered.memory(size) if registered.likely(self._connection, self._attachment) else None
        if there is None:
            there = self._into if self._ours else memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type]
        if self._come(there):
            return True
        self.land()
        return False

    def fill(self) -> bool:
        """Has the bytes put where they belong, in a thread; True if they will be there when the read is answered."""
        return self._come(self._into)

    def _come(self, there: memoryview) -> bool:
        """Has the bytes come to `there`; True if they will be there when the read is answered, else they are."""
        connection, attachment, reply, number = self._connection, self._attachment, self._reply, self._number
        attachment.wait_opened()
        landing = None
        if registered.shareable(there):
            landing = registered.download(connection, attachment, number, there)
        self._from = there
        if landing is not None and landing.sure:
            reply.on_error = partial(registered.spoil, there)  # with which the session holds it
            if reply.error is not None:
                registered.spoil(there)
            return True
        try:
            router.carry_download(connection, attachment, reply, number, there, None, self._report)
        except HearthError:
            if landing is None or not reply.answered or reply.error is not None:
                raise  # else the daemon had received their place, and is done
        self._report = None
        return False

    def land(self) -> None:
        """Copies the bytes to the caller's memory; called in a thread."""
        with self._lock:
            if self._dropped or self._from is None:
                return
            self._landing = True
        registered.copy(self._into, self._from)
        self._from = None
        if self._report is not None:
            self._report(len(self._into), len(self._into))

    def drop(self) -> bool:
        """Leaves the caller's memory as it is from now on; True if a copy has begun, which then ends in a moment."""
        with self._lock:
            self._dropped = True
            return self._landing and not self._ours


async def download(
    connection: LoopConnection,
    attachment: LoopAttachment,
    part: BufferPart,
    into: memoryview,
    timeout: float | None,
    report: Progress | None,
    *,
    ours: bool,
) -> None:
    """Reads bytes into memory, which is not written to once this returns or raises.

    `ours`: nothing else refers to that memory, so that late writes do no harm.
    """
    home = connection.home
    deadline = None if timeout is None else home.loop.time() + timeout
    reply, number = router.begin_download(connection, attachment, part, len(into))
    down = _Download(connection, attachment, reply, number, report, into, ours=ours)
    work: Work[bool] | Work[None] = home.downloads.run(down.begin)
    shared = False
    try:
        await home.over(work, timeout)
        if not work.done():
            raise reply.given_up(timeout)
        shared = not work.exception() and bool(work.result())
        if shared:
            await home.answered(reply, None if deadline is None else max(0.0, deadline - home.loop.time()))
            if not reply.answered:
                raise reply.given_up(timeout)
            if reply.error is None:
                work = home.downloads.run(down.land)
                await home.over(work)
    except BaseException as error:
        reply.abandon()
        if down.drop():
            await home.outlast(work, error)
        raise
    if shared:
        reply.wait()
    work.result()


def fillable(connection: LoopConnection, attachment: Attachment, into: memoryview) -> bool:
    """True if the device can probably fill that memory itself."""
    return registered.shareable(into) and registered.likely(connection, attachment)


async def fill(
    connection: LoopConnection,
    attachment: LoopAttachment,
    part: BufferPart,
    into: memoryview,
    timeout: float | None,
    report: Progress | None,
) -> None:
    """Has the device fill memory in the order of the stream, and returns when that is certain; an error is then
    reported by the next await that reports errors. Where the device cannot, returns when the memory is filled.
    """
    home = connection.home
    reply, number = router.begin_download(connection, attachment, part, len(into))
    down = _Download(connection, attachment, reply, number, report, into, ours=True)
    work = home.downloads.run(down.fill)
    try:
        await home.over(work, timeout)
        if not work.done():
            raise reply.given_up(timeout)
    except BaseException:
        reply.abandon()
        raise
    if work.result():
        reply.abandon()
        if report is not None:
            report(len(into), len(into))
