"""The overload manager: levels with hysteresis, the calls refused at each level, and the readings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason
from hearth_proto.v1 import device_pb2, node_pb2
from hearthd.front.config.front_limits import OverloadSettings
from hearthd.front.overload.manager import OverloadManager
from hearthd.front.overload.policy import (
    HOLD_S,
    REFUSED_CRITICAL,
    RELEASE,
    OverloadLevel,
    Trigger,
    refused_kind,
)
from hearthd.front.overload.readings import GroupMemory, descriptors, own_memory

FIRST, SECOND = 10.0, 20.0
READINGS = st.lists(st.tuples(st.floats(0, 30), st.floats(0.01, 3)), max_size=60)
"""Readings, and the seconds before each."""


def reached(reading: float) -> OverloadLevel:
    return (
        OverloadLevel.CRITICAL
        if reading >= SECOND
        else OverloadLevel.ELEVATED
        if reading >= FIRST
        else OverloadLevel.CALM
    )


@given(READINGS)
def test_level_rises_immediately_and_falls_slowly(course: list[tuple[float, float]]) -> None:
    """Compares with the definition: a level ends only if every reading of the last HOLD_S was below its release
    threshold."""
    trigger, now, past = Trigger(FIRST, SECOND), 0.0, []
    for reading, pause in course:
        now += pause
        before = trigger.level
        level = trigger.update(reading, now)
        past.append((now, reading))
        assert level >= reached(reading), "a reading over a threshold takes effect immediately"
        assert level >= before - 1, "one step at a time"
        if level < before:
            release = RELEASE * trigger.thresholds[before]
            below = [when for when, each in past if each >= release]
            first = past[0][0] if not below else next(when for when, _ in past if when > below[-1])
            assert now - first >= HOLD_S
        if level > before:
            assert level == reached(reading)


@given(st.lists(st.floats(RELEASE * FIRST, SECOND, exclude_max=True), min_size=1), st.floats(0.1, 5))
def test_readings_that_swing_about_a_threshold_change_the_level_once(readings: list[float], pause: float) -> None:
    trigger = Trigger(FIRST, SECOND)
    levels = [trigger.update(reading, number * pause) for number, reading in enumerate(readings)]
    assert sum(a != b for a, b in zip([OverloadLevel.CALM, *levels], levels, strict=False)) <= 1


@given(READINGS)
def test_level_returns_to_calm_after_the_load(course: list[tuple[float, float]]) -> None:
    trigger, now = Trigger(FIRST, SECOND), 0.0
    for reading, pause in course:
        now += pause
        trigger.update(reading, now)
    for _ in range(6):
        now += HOLD_S
        trigger.update(0.0, now)
    assert trigger.level == OverloadLevel.CALM and trigger.pressure == 0


@given(st.lists(st.floats(0, 100)), st.floats(100, 1000))
def test_single_outlier_is_ignored(readings: list[float], spike: float) -> None:
    manager = OverloadManager(OverloadSettings(), read={"memory": lambda: 0.0})
    for reading in [*readings, spike]:
        manager.measure(reading, all_resources=False)
    assert manager.triggers["loop_lag"].reading <= max([0.0, *readings])


def test_refused_methods_at_each_level() -> None:
    assert refused_kind("OpenSession", OverloadLevel.CALM) == refused_kind("Launch", OverloadLevel.ELEVATED) == ""
    assert (
        refused_kind("OpenSession", OverloadLevel.ELEVATED) == "session"
        and refused_kind("Upload", OverloadLevel.ELEVATED) == "large"
    )
    assert refused_kind("Launch", OverloadLevel.CRITICAL) == refused_kind("Execute", OverloadLevel.CRITICAL) == "work"


def test_refused_methods_exist_and_methods_that_end_work_are_served() -> None:
    methods = {
        method.name
        for file, service in ((node_pb2, "NodeService"), (device_pb2, "DeviceService"))
        for method in file.DESCRIPTOR.services_by_name[service].methods
    }
    assert REFUSED_CRITICAL.keys() <= methods
    served = methods - REFUSED_CRITICAL.keys()
    for start in ("Close", "Describe", "Destroy", "End", "Free", "Get", "Leave", "List", "Release", "Renew", "Sync"):
        assert all(method in served for method in methods if method.startswith(start)), start
    assert {"Drain", "RestartDevice", "TransferStatus", "MemoryCleanup", "Flush", "OpenBulk"} <= served


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def manager_with(**readings: float) -> tuple[OverloadManager, dict[str, float], Clock]:
    clock = Clock()
    values = {"memory": 0.0, "group_memory": 0.0, "descriptors": 0.0, **readings}
    read = {name: (lambda name=name: values[name]) for name in values}
    settings = OverloadSettings(memory=100, memory_critical=200)
    return OverloadManager(settings, read=read, clock=clock), values, clock


def test_overload_is_reported_refuses_calls_and_ends() -> None:
    manager, values, clock = manager_with()
    levels = []
    manager.listeners.append(lambda: levels.append(manager.level))
    manager.measure(0.0, all_resources=True)
    assert manager.admit("OpenSession") is None and manager.description == ""
    values["memory"] = 150.0
    manager.measure(0.0, all_resources=True)
    refusal = manager.admit("OpenSession")
    assert refusal is not None and refusal.reason == Reason.OVERLOADED and refusal.retry_after_s == 1.0
    assert "150 bytes" in manager.description and manager.admit("Launch") is None
    values["descriptors"] = 0.99
    manager.measure(0.0, all_resources=True)
    assert manager.admit("Launch") is not None and manager.admit("Free") is None
    assert manager.description.startswith("up to 99% of the files"), "names critical readings, and not elevated ones"
    values.update(memory=0.0, descriptors=0.0)
    for _ in range(6):
        clock.now += HOLD_S
        manager.measure(0.0, all_resources=True)
    assert levels == [OverloadLevel.ELEVATED, OverloadLevel.CRITICAL, OverloadLevel.ELEVATED, OverloadLevel.CALM]
    assert manager.admit("Launch") is None
    samples = {
        (sample.name, *sample.labels.values()): sample.value for each in manager.collect() for sample in each.samples
    }
    assert samples["hearth_overload_refusals_total", "session"] == 1
    assert samples["hearth_overload_refusals_total", "work"] == 1
    assert samples["hearth_overload_level",] == 0


def test_lag_counts_only_if_sustained() -> None:
    manager, _, _ = manager_with()
    manager.measure(30.0, all_resources=False)
    manager.measure(0.0, all_resources=False)
    assert manager.level == OverloadLevel.CALM, "a pause of the process"
    for _ in range(3):
        manager.measure(1.0, all_resources=False)
    assert manager.level == OverloadLevel.ELEVATED and "late" in manager.description


def test_resource_that_cannot_be_read_is_left_out() -> None:
    def gone() -> float:
        raise FileNotFoundError

    manager = OverloadManager(OverloadSettings(), read={"group_memory": gone}, clock=Clock())
    manager.measure(0.0, all_resources=True)
    assert manager.level == OverloadLevel.CALM


def test_disabled_overload_control_refuses_nothing() -> None:
    manager = OverloadManager(OverloadSettings(enabled=False), read={"descriptors": lambda: 1.0}, clock=Clock())
    manager.measure(0.0, all_resources=True)
    assert manager.admit("OpenSession") is None and manager.triggers["descriptors"].level == OverloadLevel.CRITICAL


def test_changed_thresholds_count_for_the_last_readings() -> None:
    manager, _, _ = manager_with(memory=150.0)
    told = []
    manager.listeners.append(lambda: told.append(manager.level))
    manager.measure(0.0, all_resources=True)
    assert manager.level == OverloadLevel.ELEVATED
    manager.change(OverloadSettings(memory=120, memory_critical=140))
    assert manager.level == OverloadLevel.CRITICAL and manager.admit("Launch") is not None
    manager.change(OverloadSettings(memory=151, memory_critical=200))
    assert manager.level == OverloadLevel.CALM, "immediately, although the reading is not far below"
    manager.change(OverloadSettings(memory=100, memory_critical=200))
    manager.change(OverloadSettings(memory=100, memory_critical=200, enabled=False))
    assert manager.admit("OpenSession") is None
    manager.measure(0.0, all_resources=True)
    manager.change(OverloadSettings(memory=100, memory_critical=200))
    assert told == [
        OverloadLevel.ELEVATED,
        OverloadLevel.CRITICAL,
        OverloadLevel.CALM,
        OverloadLevel.ELEVATED,
        OverloadLevel.CALM,
        OverloadLevel.ELEVATED,
    ]
    manager.change(OverloadSettings())
    assert (
        manager.level == OverloadLevel.CALM and manager.triggers["memory"].thresholds[OverloadLevel.ELEVATED] > 1 << 20
    )


def test_thresholds_are_in_order() -> None:
    with pytest.raises(ValueError, match="must not exceed"):
        OverloadSettings(loop_lag="3s")
    assert OverloadManager(OverloadSettings(memory=7)).triggers["memory"].thresholds[OverloadLevel.CRITICAL] == 14


def test_readings_of_this_process() -> None:
    assert own_memory() > 1 << 20
    assert 0 < descriptors() < 1


def test_control_group_with_the_lowest_limit_counts(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("1:memory:/old\n0::/system.slice/hearthd.service\n")
    service = tmp_path / "groups/system.slice/hearthd.service"
    service.mkdir(parents=True)
    for folder, limit in ((service, "max"), (service.parent, "1000"), (tmp_path / "groups", "4000")):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("800\n")
        (folder / "memory.stat").write_text("anon 500\ninactive_file 300\nactive_file 10\n")
    assert GroupMemory(tmp_path / "groups", own).read() == 0.5
    assert GroupMemory(tmp_path / "groups", tmp_path / "absent").read() == 0.0
    (service.parent / "memory.max").write_text("max\n")
    assert GroupMemory(tmp_path / "groups", own).read() == 0.125
