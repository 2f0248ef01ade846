"""KeyboardInterrupt (Ctrl-C) raised at a chosen line of the client's code."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import hearth
from hearth.session import protocol
from tests.support.compiled import skip_if_compiled

PACKAGE = str(Path(hearth.__file__).parent)


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
        assert self._lock.acquire(timeout=20), "the lock was left held"
        return True

    def __exit__(self, *_: object) -> None:
        self._lock.release()
