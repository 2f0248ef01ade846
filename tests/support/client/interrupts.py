"""KeyboardInterrupt (Ctrl-C) raised at a chosen line of the client's code."""

from __future__ import annotations

import linecache
import sys
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
