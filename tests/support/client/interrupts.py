"""KeyboardInterrupt (Ctrl-C) raised in a wait, or at a chosen line of the client's code."""

from __future__ import annotations

import contextlib
import linecache
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import hearth
from hearth.session import protocol
from hearth.session.attachment import Attachment
from tests.support.client.waits import wait_for
from tests.support.compiled import skip_if_compiled

PACKAGE = str(Path(hearth.__file__).parent)


@contextlib.contextmanager
def interrupted_wait(work: Attachment) -> Iterator[None]:
    """Raises one KeyboardInterrupt in the main thread as soon as it waits in the block for an answer of `work`.

    No other thread may wait for one. SIGINT is repeated until Python has handled it: a signal that arrives directly
    before a blocking call of the interpreter is noticed only when the call returns or another signal arrives.
    """
    main = threading.main_thread().ident
    assert main is not None and main == threading.get_ident()
    handled = threading.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        if not handled.is_set():
            handled.set()
            raise KeyboardInterrupt

    def waits() -> bool:
        return bool(work.waiters.sleepers) or (work.channel is not None and work.channel.role.holder == main)

    def interrupt() -> None:
        if wait_for(waits, 60):
            while not handled.is_set():
                signal.pthread_kill(main, signal.SIGINT)
                handled.wait(0.1)

    interrupting = threading.Thread(target=interrupt)
    old = signal.signal(signal.SIGINT, handle)
    interrupting.start()
    try:
        yield
    finally:
        interrupting.join()
        signal.signal(signal.SIGINT, old)


def interrupting(call: Callable[[], object], step: int) -> bool:
    """Calls `call`, and raises KeyboardInterrupt at the client's line number `step`, counted in the order of execution.
    Returns False if fewer lines were executed.

    Lines of a `with` statement are not counted: at the end of the block the exception would be raised before the lock
    is released, where no real signal is handled. Nor is the line `try:`, which no handler covers.
    """
    skip_if_compiled(protocol)
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if PACKAGE not in frame.f_code.co_filename:
            return None
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event in ("call", "line") and not text.lstrip().startswith(("with ", "try:")):
            count += 1
            if count == step:
                raise KeyboardInterrupt
        return trace

    old = sys.gettrace()
    try:
        sys.settrace(trace)
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(old)
    return False


class InterruptedLock:
    """A lock for the tests of one thread: a Ctrl-C follows each call of `acquire`, and none follows the beginning of a
    `with` statement."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._lock.acquire(blocking, timeout)
        raise KeyboardInterrupt

    def release(self) -> None:
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()

    def __enter__(self) -> bool:
        assert self._lock.acquire(timeout=20), "the lock is still held"
        return True

    def __exit__(self, *_: object) -> None:
        self._lock.release()
