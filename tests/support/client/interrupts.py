"""Ctrl-C at any line of the client's."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import hearth

PACKAGE = str(Path(hearth.__file__).parent)


def interrupting(call: Callable[[], object], step: int) -> bool:
    """Calls `call`, and raises KeyboardInterrupt at line number `step` of the client's; returns False if there were
    fewer lines.

    Lines of a `with` are left out: at its end this would come before the lock is released, where no signal does.
    """
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if PACKAGE not in frame.f_code.co_filename:
            return None
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event in ("call", "line") and not text.lstrip().startswith("with "):
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
