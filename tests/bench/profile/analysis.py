"""Time and calls of each step, from the events of client and device process. Pure."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tests.bench.profile.steps import CLIENT, DEVICE, END, START, Operation, Step

Events = Sequence[tuple[int, int]]
"""Number and time in nanoseconds of each event, in order of time."""


def round_trips(operation: Operation, client: Events, device: Events) -> tuple[list[list[float]], int]:
    """Returns, for each repetition, the microseconds of each awaited step, and the number of repetitions left out.

    A repetition is left out if its client's or device's events are not those of the operation, for example because a
    launch was sent before its Sync.
    """
    path = [(number, step) for number, step in enumerate(operation.steps) if step.awaited]
    device_times = [when for _, when in device]
    rows, left_out = [], 0
    for own in _repetitions(client):
        start, end = own[0][1], own[-1][1]
        theirs = device[bisect_left(device_times, start) : bisect_right(device_times, end)]
        times = _begins(path, {CLIENT: own, DEVICE: theirs}, start, end)
        if times is None:
            left_out += 1
        else:
            rows.append([(until - since) / 1e3 for since, until in pairwise([*times, end])])
    return rows, left_out


def _repetitions(client: Events) -> list[Events]:
    """Returns the events of each repetition, the first and last of which are its start and end."""
    starts = [index for index, (number, _) in enumerate(client) if number == START]
    ends = [index for index, (number, _) in enumerate(client) if number == END]
    return [client[start : end + 1] for start, end in zip(starts, ends, strict=True)]


def _begins(path: Sequence[tuple[int, Step]], events: dict[str, Events], start: int, end: int) -> list[int] | None:
    """Returns the times at which the steps begin; None if an event is missing. Each is the latest before the next."""
    times, limit = [], end
    for wanted, step in reversed(path[1:]):
        found = max((when for number, when in events[step.side] if number == wanted and when <= limit), default=None)
        if found is None or found < start:
            return None
        times.append(found)
        limit = found
    return [start, *reversed(times)]


def middle(rows: Sequence[Sequence[float]]) -> list[float]:
    """Returns the mean of each step over the half of the repetitions whose totals are nearest to the median.

    Their sum is the mean total of these repetitions: outliers have no part in it.
    """
    ordered = sorted(rows, key=sum)
    kept = ordered[len(ordered) // 4 : max(len(ordered) * 3 // 4, len(ordered) // 4 + 1)]
    return [statistics.fmean(column) for column in zip(*kept, strict=True)]


def segments(events: Events) -> dict[int, tuple[float, int]]:
    """Returns, by event number, the microseconds until the next event, summed, and the number of such segments."""
    sums: Counter[int] = Counter()
    numbers: Counter[int] = Counter()
    for (number, since), (_, until) in pairwise(events):
        sums[number] += until - since
        numbers[number] += 1
    return {number: (total / 1e3, numbers[number]) for number, total in sums.items()}


def analyse(
    operation: Operation,
    plain_us: Sequence[float],
    timed: Sequence[dict[str, Any]],
    counted: dict[str, Any],
    count: int,
) -> dict[str, Any]:
    """Returns the budget of one operation, as JSON has it.

    Args:
        operation: The operation.
        plain_us: Microseconds of one operation without a recorder, a figure of each round.
        timed: Reports of the runs that recorded times, one of each round.
        counted: Report of the run that recorded calls.
        count: Repetitions of each run.
    """
    measure = _waiting if operation.waits else _streaming
    rounds = [measure(operation, report, count) for report in timed]
    # Each event's cost falls on the two steps that it divides: together they are longer by one cost for each step.
    cost = statistics.fmean(report[side]["cost_us"] for report in timed for side in (CLIENT, DEVICE))
    budget: dict[str, Any] = {
        "operation": operation.name,
        "plain_us": statistics.median(plain_us),
        "recorded_us": statistics.median(each["total"] for each in rounds),
        "event_us": cost,
        "repetitions": count * len(rounds),
        "left_out": sum(each["left_out"] for each in rounds),
    }
    calls = {CLIENT: _calls(counted["client"]["counts"]), DEVICE: _calls(counted["device"]["counts"])}
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for number, step in enumerate(operation.steps):
        us = statistics.median(each["steps"].get(number, 0.0) for each in rounds)
        events = statistics.median(each["events"].get(number, 0.0) for each in rounds)
        row = rows.setdefault(
            (step.part, step.name),
            {"part": step.part, "step": step.name, "awaited": step.awaited, "us": 0.0}
            | {"python_calls": 0.0, "c_calls": 0.0, "calls_by_file": {}},
        )
        row["us"] += max(0.0, us - events * cost)
        for (file, kind), calls_of_file in calls[step.side].get(number, {}).items():
            row["python_calls" if kind == "call" else "c_calls"] += calls_of_file / count
            by_file = row["calls_by_file"]
            by_file[file] = by_file.get(file, 0.0) + calls_of_file / count
    for row in rows.values():
        row["calls_by_file"] = dict(sorted(row["calls_by_file"].items(), key=lambda item: -item[1]))
    budget["steps"] = list(rows.values())
    return budget


def _waiting(operation: Operation, report: dict[str, Any], count: int) -> dict[str, Any]:
    """Returns the microseconds of each step of an operation that the client waits for, and of what follows it."""
    rows, left_out = round_trips(operation, report["client"]["events"], report["device"]["events"])
    if not rows:
        raise ValueError(f"{operation.name}: no repetition has all events")
    numbers = [number for number, step in enumerate(operation.steps) if step.awaited]
    steps = dict(zip(numbers, middle(rows), strict=True))
    total = sum(steps.values())
    for number, (us, times) in segments(report["device"]["events"]).items():
        if not operation.steps[number].awaited:
            steps[number] = us / times
    return {"steps": steps, "events": dict.fromkeys(steps, 1.0), "total": total, "left_out": left_out}


def _streaming(operation: Operation, report: dict[str, Any], count: int) -> dict[str, Any]:
    """Returns the microseconds of each step for one of many operations, of both processes."""
    found = segments(report["client"]["events"]) | segments(report["device"]["events"])
    return {
        "steps": {number: us / count for number, (us, _) in found.items()},
        "events": {number: times / count for number, (_, times) in found.items()},
        "total": report["total_us"] / count,
        "left_out": 0,
    }


def _calls(counts: Sequence[tuple[int, str, str, int]]) -> dict[int, dict[tuple[str, str], int]]:
    """Returns the number of calls by event, and by file and kind of call."""
    found: dict[int, dict[tuple[str, str], int]] = {}
    for event, file, kind, number in counts:
        by_file = found.setdefault(event, {})
        key = (_short(file), kind)
        by_file[key] = by_file.get(key, 0) + number
    return found


def _short(file: str) -> str:
    """Returns the path below the package's folder."""
    for package in ("hearth_proto/", "hearthd/", "hearth/"):
        before, found, after = file.rpartition(f"/{package}")
        if found:
            return package + after if before else file
    return file.rpartition("/")[2]
