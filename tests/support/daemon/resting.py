"""A kernel of a known duration, which sleeps on the CPU backend instead of using a processor, and clients that launch
it continuously."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType

import numpy as np

import hearth
from tests.support.daemon.harness import BACKEND

SOURCES = {
    "cpu": r"""
extern "C" __global__ void rest(int* done, long long nanoseconds) {
    for (; nanoseconds > 0; nanoseconds -= 1000000) __nanosleep(nanoseconds);
    *done += 1;
}
""",
    "cuda": r"""
extern "C" __global__ void rest(int* done, long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while ((long long)(now - start) < nanoseconds);
    *done += 1;
}
""",
}
SOURCE = SOURCES[BACKEND]


class Flood:
    """A client in a thread that keeps a number of launches pending until it is stopped. `done` counts the launches that
    have run."""

    def __init__(self, node: hearth.Node, nanoseconds: int, at_a_time: int = 4, under_way: int = 40) -> None:
        self._gpu = node.device(0)
        self._kernel = self._gpu.RawModule(code=SOURCE).get_function("rest")
        self._counter = self._gpu.zeros(1, np.int32)
        self._nanoseconds = np.int64(nanoseconds)
        self._at_a_time = at_a_time
        self._under_way = under_way
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.done = 0
        self.launched = 0
        self.launch()
        self._gpu.synchronize()  # completes the allocations that the first use makes
        self.done = self.launched

    def launch(self) -> None:
        self._kernel((1,), (1,), (self._counter, self._nanoseconds))
        self.launched += 1

    def _run(self) -> None:
        events: deque[tuple[hearth.Event, int]] = deque()
        stream = self._gpu.default_stream
        while not self._stop.is_set():
            for _ in range(self._at_a_time):
                self.launch()
            events.append((stream.record(), self.launched))
            if len(events) > self._under_way:
                event, launched = events.popleft()
                event.synchronize()
                self.done = launched
        self._gpu.synchronize()
        self.done = self.launched

    def counted(self) -> int:
        """Returns the number of launches that have run, as counted by the kernel itself."""
        return int(self._counter.get()[0])

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
