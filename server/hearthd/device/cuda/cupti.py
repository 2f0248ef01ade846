"""CUPTI's kernel activity: start and end of each kernel, its registers, its shared memory.

Uses the `cupti-python` package. Collected only while a trace runs. The number of each command is pushed as an external
correlation id while the command is submitted to the driver. CUPTI's records relate that id to the launches made in the
meantime (for all kernels of a graph, to the one launch of the graph), and the launches to their kernels. Records
without a number belong to commands that are not traced.
"""

from __future__ import annotations

import importlib
import itertools
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from hearthd.device.profiling.annotations import KernelTiming

BUFFER_BYTES = 8 << 20
"""Size in bytes of one buffer of records, as in NVIDIA's samples; CUPTI requests another buffer when one is full."""

FORCED = 1
"""CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: also delivers buffers with records of kernels that are still running."""

MAX_KERNELS = 1_000_000
"""Largest number of kernels kept between two collects; further kernels are dropped."""


class KernelActivity:
    """Implements `hearthd.device.profiling.annotations.KernelActivitySource` with CUPTI.

    CUPTI calls back on a separate thread.
    """

    def __init__(self, cupti: Any, warn: Callable[[str], None]) -> None:
        self._cupti = cupti
        self._warn = warn
        self._lock = threading.Lock()
        self._users = 0
        self._keys = itertools.count()
        self._newest = 0
        """Largest number of a command so far."""
        self._traces: dict[int, int] = {}
        """The traces that have not been collected or discarded, by key: each with a number that is smaller than those
        of all its commands."""
        self._active = False
        self._warned = False
        self._pushed: list[bool] = []
        self._offset = 0
        self._external: dict[int, int] = {}
        self._kernels: list[tuple[int, KernelTiming]] = []
        self._matched: dict[int, list[KernelTiming]] = {}
        kinds = cupti.ActivityKind
        # External correlation records come only if records of the API calls inside the push and pop are enabled, too.
        self._kinds = (kinds.CONCURRENT_KERNEL, kinds.EXTERNAL_CORRELATION, kinds.DRIVER, kinds.RUNTIME)
        self._custom = cupti.ExternalCorrelationKind.CUSTOM0
        cupti.activity_register_callbacks(self._requested, self._completed)

    def start(self) -> int:
        """Begins a trace, and returns its key. The first trace enables CUPTI's records."""
        key = next(self._keys)
        with self._lock:
            self._traces[key] = self._newest
        self._users += 1
        if self._users == 1:
            self._active = self._try(self._enable)
        return key

    def stop(self) -> None:
        """Ends a trace, all of whose kernels have ended. Its records stay until they are collected."""
        self._users -= 1
        if not self._users and self._active:
            self._active = False
            self._try(self._disable)

    def push(self, name: str, number: int) -> None:
        """Begins the launches of a command. Each push needs a pop, even if no trace runs; `name` is not used.

        A command that arrived later has a larger number.
        """
        self._newest = max(self._newest, number)
        pushed = self._active and self._try(
            lambda: self._cupti.activity_push_external_correlation_id(self._custom, number)
        )
        self._pushed.append(pushed)

    def pop(self) -> None:
        """Ends the launches of the last pushed command."""
        if self._pushed.pop():
            self._try(lambda: self._cupti.activity_pop_external_correlation_id(self._custom))

    def _enable(self) -> None:
        before = time.perf_counter_ns()
        stamp = int(self._cupti.get_timestamp())
        self._offset = (before + time.perf_counter_ns()) // 2 - stamp
        for kind in self._kinds:
            self._cupti.activity_enable(kind)

    def _disable(self) -> None:
        for kind in self._kinds:
            self._cupti.activity_disable(kind)

    def _try(self, call: Callable[[], object]) -> bool:
        """Calls `call`; returns False if CUPTI refuses it.

        The only effect of a refusal is that a command or a trace lacks its kernels.
        """
        try:
            call()
        except Exception as error:
            if not self._warned:
                self._warned = True
                self._warn(f"CUPTI failed; traces will not contain kernels: {type(error).__name__}: {error}")
            return False
        return True

    def collect(self, trace: int, numbers: Collection[int]) -> list[KernelTiming]:
        """Returns the kernels of a trace's commands, in the order of their start. Waits for CUPTI's thread; any thread.

        While another trace runs, CUPTI keeps buffers with records of kernels that are still running, with all other
        records in them; if they were forced out, those records would be lost to the other trace.
        """
        try:
            self._cupti.activity_flush_all(0 if self._users else FORCED)
            with self._lock:
                self._match()
                kernels = [kernel for number in numbers for kernel in self._matched.pop(number, ())]
        finally:
            self._end(trace, frozenset(numbers))
        return sorted(kernels, key=lambda kernel: kernel.started_ns)

    def discard(self, trace: int) -> None:
        """Ends the use of a trace that will not be collected; any thread."""
        self._end(trace)

    def _end(self, trace: int, numbers: frozenset[int] = frozenset()) -> None:
        """Drops the records that no other trace needs: those of `numbers`, and those older than all other traces."""
        with self._lock:
            self._traces.pop(trace, None)
            if not self._traces:
                self._kernels.clear()
            oldest = min(self._traces.values(), default=self._newest)
            for correlation, number in list(self._external.items()):
                if number <= oldest or number in numbers:
                    del self._external[correlation]
            for number in [number for number in self._matched if number <= oldest]:
                del self._matched[number]

    # ---- CUPTI's callbacks ----

    @staticmethod
    def _requested() -> tuple[int, int]:
        return BUFFER_BYTES, 0  # 0: as many records as fit

    def _completed(self, activities: list[Any]) -> None:
        """Copies the needed fields of the records, which are invalid after this method returns."""
        try:
            with self._lock:
                for activity in activities:
                    if activity.kind == self._kinds[1] and len(self._external) < MAX_KERNELS:
                        self._external[activity.correlation_id] = activity.external_id
                    elif activity.kind == self._kinds[0] and activity.end and len(self._kernels) < MAX_KERNELS:
                        self._kernels.append((activity.correlation_id, self._timing(activity)))
        except Exception as error:  # nothing catches an exception on CUPTI's thread
            self._warn(f"a record of CUPTI could not be read: {type(error).__name__}: {error}")

    def _timing(self, activity: Any) -> KernelTiming:
        return KernelTiming(
            number=0,
            name=str(activity.name),
            started_ns=int(activity.start) + self._offset,
            ended_ns=int(activity.end) + self._offset,
            grid=(activity.grid_x, activity.grid_y, activity.grid_z),
            block=(activity.block_x, activity.block_y, activity.block_z),
            registers=activity.registers_per_thread,
            shared_bytes=activity.static_shared_memory + activity.dynamic_shared_memory,
        )

    def _match(self) -> None:
        """Assigns kernels to the commands that launched them. The two kinds of records arrive in no fixed order."""
        kernels, self._kernels = self._kernels, []
        for correlation, kernel in kernels:
            number = self._external.get(correlation)
            if number is None:
                self._kernels.append((correlation, kernel))
            else:
                self._matched.setdefault(number, []).append(kernel._replace(number=number))


def make_activity(
    warn: Callable[[str], None], load: Callable[[str], Any] = importlib.import_module
) -> KernelActivity | None:
    """Returns CUPTI's source of kernel activity if it is installed and works with this driver.

    Otherwise returns None, with a warning that gives the reason.
    """
    try:
        return KernelActivity(load("cupti.cupti"), warn)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        warn(f"profile.cupti is set, but CUPTI cannot be used: {reason}; install cupti-python, or leave it off")
        return None
