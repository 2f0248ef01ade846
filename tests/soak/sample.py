"""Resources of a process, from /proc, and their growth."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sample:
    """Resources of one process at one time; sizes in KiB."""

    rss: int
    pss: int
    private: int
    """Memory that only this process uses, and that would be freed if the process ended."""
    fds: int
    memfds: int
    threads: int
    cpu: float
    """Processor time used so far, in seconds."""


def sample(pid: int) -> Sample | None:
    """Returns a sample; None if the process has ended."""
    folder = Path(f"/proc/{pid}")
    try:
        rollup = _fields(folder / "smaps_rollup")
        status = _fields(folder / "status")
        links = []
        for entry in (folder / "fd").iterdir():
            with contextlib.suppress(OSError):
                links.append(str(entry.readlink()))
        return Sample(
            rss=rollup["Rss"],
            pss=rollup["Pss"],
            private=rollup["Private_Clean"] + rollup["Private_Dirty"],
            fds=len(links),
            memfds=sum(link.startswith("/memfd:") for link in links),
            threads=status["Threads"],
            cpu=cpu(pid),
        )
    except (OSError, KeyError):
        return None


def cpu(pid: int) -> float:
    """Returns the processor time in seconds of a process and of its reaped children; 0 if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / _TICK


def parent(pid: int) -> int:
    """Returns the pid of the parent process; 0 if the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _fields(path: Path) -> dict[str, int]:
    """Returns the lines `name: number ...` of a file of /proc."""
    found = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        first = rest.split()
        if first and first[0].isdecimal():
            found[name] = int(first[0])
    return found


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Returns the slope of the least-squares line per hour, for times in seconds."""
    n = len(times)
    if n < 2:
        return 0.0
    middle_t, middle_v = sum(times) / n, sum(values) / n
    spread = sum((t - middle_t) ** 2 for t in times)
    if not spread:
        return 0.0
    return 3600 * sum((t - middle_t) * (v - middle_v) for t, v in zip(times, values, strict=True)) / spread


def growth(values: Sequence[float]) -> float:
    """Returns the median of the last fifth of the values minus the median of the first fifth."""
    if len(values) < 5:
        return 0.0
    part = max(1, len(values) // 5)
    return _median(values[-part:]) - _median(values[:part])


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def as_dict(one: Sample) -> dict[str, float]:
    return asdict(one)
