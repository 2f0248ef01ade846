"""NVTX ranges around commands, as shown by Nsight Systems: through the `nvtx` package, or through CuPy's own binding.

Without either of them, or without a tool that records the ranges, the device process works the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

DOMAIN = "hearth"
MAX_LABEL = 256
"""Largest number of characters of a range's label: the nvtx package keeps every label that it has seen."""

Push = Callable[[str, int], object]
Pop = Callable[[], object]


def label(name: str) -> str:
    """Returns a label that every tool can show: printable, not empty, limited in length."""
    text = "".join(character if character.isprintable() else "?" for character in name[:MAX_LABEL])
    return text or "command"


class Ranges:
    """Implements `hearthd.device.profiling.annotations.RangeMarker` with NVTX.

    A push that fails is not popped, and turns ranges off permanently.
    """

    def __init__(self, push: Push, pop: Pop, warn: Callable[[str], None]) -> None:
        self._push = push
        self._pop = pop
        self._warn = warn
        self._open: list[bool] = []
        self.active = True

    def push(self, name: str, number: int) -> None:
        """Begins a range labelled with the command's name; `number` is its payload, which CuPy's NVTX leaves out."""
        self._open.append(self.active and self._try(lambda: self._push(label(name), number)))

    def pop(self) -> None:
        """Ends the range of the last push, unless that push failed."""
        if self._open.pop():
            self._try(self._pop)

    def _try(self, call: Callable[[], object]) -> bool:
        try:
            depth = call()
        except Exception as error:
            if self.active:
                self.active = False
                self._warn(f"NVTX ranges are now disabled: {type(error).__name__}: {error}")
            return False
        # nvtxRangePush returns the depth; a negative value means that there is no range
        return not (isinstance(depth, int) and depth < 0)


def make_ranges(warn: Callable[[str], None], load: Callable[[str], object] = importlib.import_module) -> Ranges | None:
    """Returns ranges through whichever package is installed; None, with a warning, if none is.

    `load` imports a module by name.
    """
    try:
        nvtx = load("nvtx")
        push_range, pop_range = nvtx.push_range, nvtx.pop_range  # type: ignore[attr-defined]
        return Ranges(
            lambda name, number: push_range(name, domain=DOMAIN, payload=number), lambda: pop_range(domain=DOMAIN), warn
        )
    except (ImportError, AttributeError) as error:
        missing = str(error)
    try:
        cupy = load("cupy_backends.cuda.libs.nvtx")
        if getattr(cupy, "available", False):
            range_push, range_pop = cupy.RangePush, cupy.RangePop  # type: ignore[attr-defined]
            return Ranges(lambda name, number: range_push(name), range_pop, warn)
        missing += "; CuPy was built without NVTX"
    except (ImportError, AttributeError) as error:
        missing += f"; {error}"
    warn(f"profile.nvtx is set, but there is no NVTX here: {missing}; install the nvtx package")
    return None
