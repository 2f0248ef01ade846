"""Recorder of one process: the times of events at the ends of functions, and the number of calls between events."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

from tests.bench.profile.steps import DRIVER, ENTER, LEAVE, Probe

_CALIBRATION = 2000
"""Calls of one calibration."""


class Recorder:
    """Records the events of one thread.

    An event costs 0.2 to 0.4 us, which `cost_us` measures. The functions must be replaced before the objects that keep
    bound methods of them are made.
    """

    def __init__(self) -> None:
        self.events: list[tuple[int, int]] = []
        """Number and time in nanoseconds (`time.perf_counter_ns`, the same clock in all processes) of each event."""
        self.counts: Counter[tuple[int, str, str]] = Counter()
        """Number of calls, by the latest event, the file of the caller or, for a Python function, of the function, and
        "call" or "c_call"."""
        self._thread = 0
        self._own: set[CodeType] = {Recorder.note.__code__}

    def note(self, event: int) -> None:
        """Records an event, if it happens in the recorded thread."""
        if threading.get_ident() == self._thread:
            self.events.append((event, time.perf_counter_ns()))

    def begin(self) -> None:
        """Starts to record times in the calling thread. Drops earlier events."""
        self.events.clear()
        self.counts.clear()
        self._thread = threading.get_ident()

    def begin_counting(self) -> None:
        """Starts to record the calls of the calling thread, which makes it several times slower."""
        self.begin()
        self._own.add(sys._getframe().f_code)
        sys.setprofile(self._count)

    def end(self) -> None:
        """Stops to record. Events and counts are kept."""
        sys.setprofile(None)
        self._thread = 0

    def exclude(self, *functions: Callable[..., Any]) -> None:
        """Excludes calls of these functions, and calls of C functions by them, from the counts."""
        self._own.update(function.__code__ for function in functions)

    def _count(self, frame: FrameType, kind: str, _argument: object) -> None:
        if kind in ("call", "c_call") and self.events and frame.f_code not in self._own:
            self.counts[self.events[-1][0], frame.f_code.co_filename, kind] += 1

    def install(self, probes: Iterable[tuple[int, Probe]], backend: str = "cpu") -> None:
        """Replaces the functions of the probes by functions that record events.

        Raises LookupError if no function of a probe exists, and TypeError if one is compiled.
        """
        edges: dict[str, dict[str, int]] = {}
        for number, probe in probes:
            found = False
            for target in probe.targets:
                for path in DRIVER[backend].get(target, (target,)):
                    if _find(path) is not None:
                        edges.setdefault(path, {})[probe.edge] = number
                        found = True
            if not found:
                raise LookupError(f"there is none of {', '.join(probe.targets)}: change tests/bench/profile/steps.py")
        for path, numbers in edges.items():
            owner, name = _find(path) or (None, "")
            replace = self._wrap_returned if path.endswith("()") else self.wrap
            setattr(owner, name, replace(getattr(owner, name), numbers))

    def wrap(self, function: Callable[..., Any], numbers: dict[str, int]) -> Callable[..., Any]:
        """Returns a function that calls `function`, and records the events in `numbers`, by edge."""
        note = self.note
        if LEAVE not in numbers:
            (entered,) = numbers.values()

            def probed(*args: Any, **kwargs: Any) -> Any:
                note(entered)
                return function(*args, **kwargs)

        elif len(numbers) == 1:
            (left,) = numbers.values()

            def probed(*args: Any, **kwargs: Any) -> Any:
                result = function(*args, **kwargs)
                note(left)
                return result

        else:
            entered, left = numbers[ENTER], numbers[LEAVE]

            def probed(*args: Any, **kwargs: Any) -> Any:
                note(entered)
                result = function(*args, **kwargs)
                note(left)
                return result

        self.exclude(probed)
        return probed

    def _wrap_returned(self, function: Callable[..., Any], numbers: dict[str, int]) -> Callable[..., Any]:
        def bound(*args: Any, **kwargs: Any) -> Any:
            return self.wrap(function(*args, **kwargs), numbers)

        self.exclude(bound)
        return bound

    def cost_us(self) -> float:
        """Returns the time that one event adds to a call, in microseconds. Drops the recorded events."""
        plain, probed = _nothing, self.wrap(_nothing, {ENTER: 0})
        best = []
        self.begin()
        for function in (plain, probed):
            times = []
            for _ in range(5):
                started = time.perf_counter_ns()
                for _ in range(_CALIBRATION):
                    function()
                times.append(time.perf_counter_ns() - started)
            best.append(min(times))
        self.end()
        self.events.clear()
        return (best[1] - best[0]) / _CALIBRATION / 1e3


def _find(path: str) -> tuple[Any, str] | None:
    """Returns the module or class that contains a function, and its name; None if it does not exist."""
    module, _, qualified = path.partition(":")
    try:
        owner: Any = importlib.import_module(module)
        *names, name = qualified.removesuffix("()").split(".")
        for each in names:
            owner = getattr(owner, each)
        getattr(owner, name)
    except (ModuleNotFoundError, AttributeError):
        return None
    return owner, name


def _nothing() -> None:
    """Does nothing."""
