"""Samples of the daemon's processes during the soak test, and their evaluation."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from tests.soak import sample
from tests.support.daemon.harness import DaemonProcess, marked

WARM_UP = 0.25
"""Fraction of the run whose samples are ignored for growth, because caches fill and pools grow to their size."""
ENOUGH = 24
"""Minimum number of samples after the warm-up: with fewer, growth is not checked."""
MEMORY_KIB = 24 << 10
"""Permitted growth in KiB of a process from the end of the warm-up to the end of the run ..."""
MEMORY_PART = 0.1
"""... or as a fraction of its size, whichever is larger: a real leak exceeds this in an hour."""
SLOPE_KIB = 32 << 10
"""Maximum slope, in KiB per hour, of the line through the samples of a long run."""
DESCRIPTORS = 12
THREADS = 6


@dataclass
class Course:
    """Samples of one process over time."""

    role: str
    pid: int
    times: list[float] = field(default_factory=list)
    samples: list[sample.Sample] = field(default_factory=list)


class Watch:
    """Samples the processes of one daemon.

    Args:
        attacked: True if attacks run in the meantime. Their connections change all the time, so the front's
            descriptors are checked only after the end.
    """

    def __init__(self, daemon: DaemonProcess, *, attacked: bool = False) -> None:
        self._daemon = daemon
        self._attacked = attacked
        self._began = time.monotonic()
        self.courses: dict[int, Course] = {}
        self.processes: list[int] = []
        self.gauges: list[dict[str, Any]] = []
        self.sessions: list[int] = []

    def take(self) -> None:
        """Takes a sample of every process."""
        now = time.monotonic() - self._began
        status = self._daemon.status()
        shared = {device["pid"]: f"device {device['ordinal']}" for device in status["devices"]}
        pids = marked(self._daemon.mark)
        self.processes.append(len(pids))
        self.sessions.append(len(status["sessions"]))
        self.gauges.append({str(device["ordinal"]): device["gauges"] for device in status["devices"]})
        for pid in pids:
            one = sample.sample(pid)
            if one is None:
                continue
            course = self.courses.get(pid)
            if course is None:
                course = self.courses[pid] = Course(self._role(pid, shared), pid)
            course.times.append(now)
            course.samples.append(one)

    def _role(self, pid: int, shared: dict[int, str]) -> str:
        if pid == self._daemon.process.pid:
            return "front"
        if pid in shared:
            return shared[pid]
        above = self.courses.get(sample.parent(pid))
        if above is not None and above.role.startswith("device"):
            return "compile worker"
        words = sample.command(pid)
        if "resource_tracker" in words:
            return "resource tracker"
        if "forkserver" in words and above is not None and above.role == "front":
            return "forkserver"
        return "other device process or worker"

    # ---- evaluation ----

    def verdict(self, seconds: float) -> tuple[list[dict[str, Any]], list[str]]:
        """Returns a summary of each process that ran for the whole time, and a list of problems."""
        summaries, wrong = [], []
        for course in self.courses.values():
            late = [i for i, t in enumerate(course.times) if t >= WARM_UP * seconds]
            if len(late) < 2 or course.times[-1] < 0.9 * seconds or course.times[0] > WARM_UP * seconds:
                continue
            times = [course.times[i] for i in late]
            summary: dict[str, Any] = {"role": course.role, "pid": course.pid, "samples": len(late)}
            for name in ("rss", "pss", "private", "fds", "memfds", "threads"):
                values = [float(getattr(course.samples[i], name)) for i in late]
                summary[name] = {
                    "first": values[0],
                    "last": values[-1],
                    "most": max(values),
                    "growth": sample.growth(values),
                    "per_hour": round(sample.slope(times, values), 1),
                }
            summaries.append(summary)
            if len(late) >= ENOUGH and course.role != "compile worker":
                wrong += self._judge(summary, seconds)
        return summaries, wrong

    def _judge(self, summary: dict[str, Any], seconds: float) -> list[str]:
        wrong = []
        name = f"{summary['role']} (pid {summary['pid']})"
        memory = summary["private"]
        most = max(MEMORY_KIB, MEMORY_PART * memory["first"])
        if memory["growth"] > most:
            wrong.append(f"{name}: its own memory grew by {memory['growth']:.0f} KiB after the warm-up")
        if seconds >= 1800 and memory["per_hour"] > max(SLOPE_KIB, MEMORY_PART * memory["first"]):
            wrong.append(f"{name}: its own memory grows by {memory['per_hour']:.0f} KiB an hour")
        for what, allowed in (("fds", DESCRIPTORS), ("memfds", DESCRIPTORS), ("threads", THREADS)):
            if what == "fds" and self._attacked and summary["role"] == "front":
                continue
            if summary[what]["growth"] > allowed:
                wrong.append(f"{name}: {summary[what]['growth']:.0f} more {what} than after the warm-up")
        return wrong

    def report(self) -> dict[str, Any]:
        return {
            "processes": self.processes,
            "sessions": self.sessions,
            "courses": [
                {
                    "role": course.role,
                    "pid": course.pid,
                    "times": [round(t, 1) for t in course.times],
                    "samples": [sample.as_dict(one) for one in course.samples],
                }
                for course in self.courses.values()
            ],
        }
