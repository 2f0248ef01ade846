"""Full garbage collections that are due run once the process has been idle for `IDLE_S`; automatic ones are rare."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from hearthd.device.process.gc_policy import DUE_COLLECTIONS, FORCED_COLLECTIONS, IDLE_S, GarbageCollector


class Node:
    """An object in a cycle with itself: only the collector finds it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.collect()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def aged() -> weakref.ref[Node]:
    """Returns a weak reference to a garbage cycle that young collections no longer visit, because it survived them."""
    node = Node()
    for _ in range(2):
        gc.collect(1)
    return weakref.ref(node)


def make_due() -> None:
    for _ in range(DUE_COLLECTIONS + 1):
        gc.collect(1)


def test_automatic_full_collections_are_postponed() -> None:
    GarbageCollector().begin()
    assert gc.get_threshold()[2] == FORCED_COLLECTIONS and gc.get_freeze_count()


def test_nothing_due_changes_no_sleep() -> None:
    collector = GarbageCollector(Clock())
    assert [collector.max_sleep(limit) for limit in (None, 0.0, 5.0)] == [None, 0.0, 5.0]


def test_due_collection_waits_for_an_idle_moment() -> None:
    clock = Clock()
    collector = GarbageCollector(clock)
    collector.begin()
    dead = aged()
    make_due()
    assert collector.max_sleep(None) == IDLE_S
    clock.now += IDLE_S / 2  # the process was busy
    assert collector.max_sleep(0.0) == 0.0 and dead() is not None
    clock.now += IDLE_S
    assert collector.max_sleep(0.001) == 0.001 and dead() is not None, "a completion is expected soon"
    assert collector.max_sleep(None) == IDLE_S
    clock.now += 2 * IDLE_S
    assert collector.max_sleep(None) is None and dead() is None
    assert collector.max_sleep(None) is None


def test_frozen_objects_are_collected_periodically() -> None:
    clock = Clock()
    collector = GarbageCollector(clock)
    node = Node()
    collector.begin()
    dead = weakref.ref(node)
    del node
    times = 0
    while dead() is not None:
        make_due()
        assert collector.max_sleep(None) == IDLE_S
        clock.now += 2 * IDLE_S
        collector.max_sleep(None)
        times += 1
        assert times <= 100, "it is never found"
    assert times > 1
