"""Memory and running kernels by session, as the processes of a device report them."""

from __future__ import annotations

from typing import Any

import pytest

from hearthd.front.supervisor.session_reports import MAX_KERNELS, KernelInFlight, SessionReports

KERNEL = {"kernel": "k", "session": "s1", "seconds": 2.5, "queued": 3}


def test_memory_is_known_by_channel_until_the_process_has_ended() -> None:
    reports = SessionReports()
    assert reports.memory(1, 7) == 0
    reports.on_report(1, {"sessions": {"7": 100, "8": 0}})
    reports.on_report(2, {"sessions": {"7": 5}})
    assert (reports.memory(1, 7), reports.memory(1, 8), reports.memory(2, 7)) == (100, 0, 5)
    reports.on_report(1, {"sessions": {"7": 50}})
    assert reports.memory(1, 7) == 50
    reports.remove_process(1)
    assert reports.memory(1, 7) == 0 and reports.memory(2, 7) == 5


def test_kernels_of_sessions_that_do_not_use_the_process_are_left_out() -> None:
    reports = SessionReports()
    reports.on_report(1, {"running": [KERNEL, {**KERNEL, "session": "s2"}]})
    assert reports.running(1, {"s1"}) == [KernelInFlight("k", "s1", 2.5, 3)]
    assert reports.running(1, {"s3"}) == [] and reports.running(2, {"s1"}) == []
    reports.on_report(1, {"running": []})
    assert reports.running(1, {"s1", "s2"}) == []


@pytest.mark.parametrize(
    "entry",
    [None, "k", [], {}, {**KERNEL, "kernel": 5}, {**KERNEL, "session": None}, {**KERNEL, "seconds": "long"},
     {**KERNEL, "seconds": -1}, {**KERNEL, "seconds": float("nan")}, {**KERNEL, "seconds": True},
     {**KERNEL, "queued": 1.5}],
)  # fmt: skip
def test_an_unusable_kernel_is_left_out(entry: Any) -> None:
    reports = SessionReports()
    reports.on_report(1, {"running": [entry, KERNEL]})
    assert reports.running(1, {"s1"}) == [KernelInFlight("k", "s1", 2.5, 3)]


@pytest.mark.parametrize("said", [None, [], "x", {"x": 1}, {"7": -1}, {"7": "9"}, {"7": True}, {"²": 5}])
def test_unusable_memory_counts_as_none(said: Any) -> None:
    reports = SessionReports()
    reports.on_report(1, {"sessions": said, "running": said})
    assert reports.memory(1, 7) == 0 and reports.running(1, {"s1"}) == []


def test_reports_are_bounded() -> None:
    reports = SessionReports()
    reports.on_report(1, {"running": [{**KERNEL, "kernel": "k" * 10_000}] * 10_000})
    running = reports.running(1, {"s1"})
    assert len(running) == MAX_KERNELS and len(running[0].kernel) == 200
