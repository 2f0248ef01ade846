"""Summary of a trace: time by kernel, transfers with their rates, streams, and idle times of a device.

Pure: converts a document in Chrome's Trace Event Format, as `hearth.Trace.save` and HEARTH_TRACE write it, to plain
data.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

GAPS = 5
_HOST = "host, "
_KERNELS = "kernels of "


@dataclass
class Row:
    """Total of all work of one name. Times in microseconds."""

    name: str
    count: int = 0
    total_us: float = 0.0
    max_us: float = 0.0
    bytes: int = 0

    def add(self, us: float, size: int) -> None:
        """Adds a piece of work, which took `us` microseconds and moved `size` bytes."""
        self.count += 1
        self.total_us += us
        self.max_us = max(self.max_us, us)
        self.bytes += size

    @property
    def mean_us(self) -> float:
        """Mean duration in microseconds; 0 without any work."""
        return self.total_us / self.count if self.count else 0.0

    @property
    def gb_per_s(self) -> float | None:
        """Transfer rate in GB/s (10**9 bytes per second); None if no time was measured."""
        return self.bytes / self.total_us / 1e3 if self.total_us else None


@dataclass(frozen=True)
class Gap:
    """Interval in which a device was idle. Times in microseconds."""

    device: str
    start_us: float
    us: float
    after: str
    before: str


@dataclass(frozen=True)
class Track:
    """Totals of one stream of one device."""

    device: str
    stream: str
    commands: int
    busy_us: float
    ratio: float
    """Busy fraction of the time from the device's first command to its last."""


@dataclass
class Summary:
    """Summary of a whole trace. Rows are sorted by time in descending order."""

    span_us: float = 0.0
    devices: list[tuple[str, float, float]] = field(default_factory=list)
    """Name, busy time, and time from the first command to the last, of each device, in microseconds."""
    kernels: list[Row] = field(default_factory=list)
    transfers: list[Row] = field(default_factory=list)
    others: list[Row] = field(default_factory=list)
    streams: list[Track] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of errors, by command and reason."""
    dropped: int = 0
    lost: int = 0


@dataclass(frozen=True)
class _Span:
    track: tuple[Any, Any]
    name: str
    start: float
    end: float


class NotATraceError(ValueError):
    """Raised for a document that is not a trace; the text says why."""


def summarize(document: Any) -> Summary:
    """Returns the summary of a trace. Raises `NotATraceError`."""
    entries = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise NotATraceError("the document has no list traceEvents")
    processes, threads = _names(entries)
    summary = Summary()
    rows: dict[str, dict[str, Row]] = {"kernels": {}, "transfers": {}, "others": {}}
    spans: dict[Any, list[_Span]] = defaultdict(list)
    seen_errors: set[tuple[Any, ...]] = set()
    for entry in entries:
        if entry.get("ph") != "X":
            continue
        args = entry.get("args") if isinstance(entry.get("args"), dict) else {}
        assert isinstance(args, dict)
        process = processes.get(entry.get("pid"), f"process {entry.get('pid')}")
        name, category = str(entry.get("name", "?")), str(entry.get("cat", ""))
        if args.get("error"):
            key = (process.removeprefix(_HOST), args.get("seq"), args.get("index"))
            if key not in seen_errors:
                seen_errors.add(key)
                summary.errors[name, str(args["error"])] += 1
        if process.startswith((_HOST, _KERNELS)):
            continue
        start, size = _time(entry.get("ts")), args.get("bytes", 0)
        size = size if isinstance(size, int) else 0
        us = _time(entry.get("dur"))
        if "started_us" in args and "ended_us" in args:  # the track may show the command shorter than it was
            us = max(0.0, _time(args["ended_us"]) - _time(args["started_us"]))
        kind = "kernels" if "grid" in args else "transfers" if size else "others"
        labels = {"kernels": name.removeprefix(f"{category} "), "transfers": category or name, "others": name}
        label = labels[kind]
        rows[kind].setdefault(label, Row(label)).add(us, size)
        track = (entry.get("pid"), entry.get("tid"))
        spans[entry.get("pid")].append(_Span(track, name, start, start + _time(entry.get("dur"))))
    for kind, rows_by_label in rows.items():
        setattr(summary, kind, sorted(rows_by_label.values(), key=lambda row: -row.total_us))
    _devices(summary, spans, processes, threads)
    metadata = document.get("otherData", {}) if isinstance(document, dict) else {}
    if isinstance(metadata, dict):
        summary.dropped, summary.lost = _integer(metadata.get("dropped")), _integer(metadata.get("lost"))
    return summary


def _names(entries: Iterable[Mapping[str, Any]]) -> tuple[dict[Any, str], dict[Any, str]]:
    processes: dict[Any, str] = {}
    threads: dict[Any, str] = {}
    for entry in entries:
        if entry.get("ph") == "M" and isinstance(entry.get("args"), dict) and "name" in entry["args"]:
            if entry.get("name") == "process_name":
                processes[entry.get("pid")] = str(entry["args"]["name"])
            elif entry.get("name") == "thread_name":
                threads[entry.get("pid"), entry.get("tid")] = str(entry["args"]["name"])
    return processes, threads


def _devices(
    summary: Summary, spans: Mapping[Any, list[_Span]], processes: Mapping[Any, str], threads: Mapping[Any, str]
) -> None:
    gaps: list[Gap] = []
    first, last = float("inf"), float("-inf")
    for pid, work in spans.items():
        device = processes.get(pid, f"process {pid}")
        work.sort(key=lambda span: (span.start, span.end))
        busy, idle = _union(work)
        begin, end = work[0].start, max(span.end for span in work)
        first, last = min(first, begin), max(last, end)
        span_us = end - begin
        summary.devices.append((device, busy, span_us))
        gaps += (Gap(device, start, us, after, before) for start, us, after, before in idle)
        tracks: dict[Any, list[_Span]] = defaultdict(list)
        for span in work:
            tracks[span.track].append(span)
        for track, track_spans in tracks.items():
            used, _ = _union(track_spans)
            name = threads.get(track, f"track {track[1]}")
            summary.streams.append(Track(device, name, len(track_spans), used, used / span_us if span_us else 1.0))
    summary.gaps = sorted(gaps, key=lambda gap: -gap.us)[:GAPS]
    summary.span_us = last - first if summary.devices else 0.0


def _union(work: Sequence[_Span]) -> tuple[float, list[tuple[float, float, str, str]]]:
    """Returns the time in which any of the work ran, and the gaps in between.

    Each gap has its start, its length, the name of the work before and the name of the work after.
    """
    busy, gaps = 0.0, []
    end, latest = work[0].start, work[0]
    for span in work:
        if span.start > end:
            gaps.append((end, span.start - end, latest.name, span.name))
        busy += max(0.0, span.end - max(end, span.start))
        if span.end >= end:
            end, latest = span.end, span
    return busy, gaps


def _time(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _integer(value: Any) -> int:
    return value if isinstance(value, int) else 0
