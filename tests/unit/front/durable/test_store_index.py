"""The index of durable buffers and, together with the device's side, the copies that remain if a process ends at any
moment."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.durable.snapshot_policy import SnapshotAreas
from hearthd.front.durable.store_index import PAGE, StoreIndex, StoreUse, charge, check, span_of


def test_places_are_pages_and_never_used_twice() -> None:
    shelf = StoreIndex()
    copies = [shelf.reserve(key, key, size) for key, size in enumerate((0, 1, PAGE, PAGE + 1))]
    assert [copy.offset for copy in copies] == [0, 0, 2 * PAGE, 4 * PAGE]
    assert shelf.bytes == 2 * (PAGE + PAGE + 2 * PAGE) == charge([0, 1, PAGE, PAGE + 1])
    assert shelf.forget([2, 99]) == [(2 * PAGE, 2 * PAGE)] and shelf.forget([0]) == []
    assert shelf.reserve(9, 9, 1).offset == 8 * PAGE
    with pytest.raises(ValueError):
        shelf.reserve(9, 9, 1)


def test_places_without_a_complete_copy_are_freed_with_their_process() -> None:
    shelf = StoreIndex()
    for key in (1, 2):
        shelf.reserve(key, key, 10)
    shelf.commit([(1, 0)])
    assert shelf.discard_incomplete() == [(2 * PAGE, 2 * PAGE)]
    assert list(shelf.copies) == [1] and shelf.bytes == 2 * PAGE
    assert shelf.discard_incomplete() == []


def test_newer_copy_of_a_reused_handle_is_kept() -> None:
    shelf = StoreIndex()
    shelf.reserve(1, 7, 10)
    shelf.reserve(2, 8, 10)
    shelf.commit([(1, 0), (2, 0)])
    shelf.reserve(3, 7, 10)  # the message that copy 1 is no longer needed is in transit
    assert shelf.discard_incomplete() == [(0, 2 * PAGE), (4 * PAGE, 2 * PAGE)]
    assert list(shelf.copies) == [2]


def test_commit_is_atomic() -> None:
    shelf = StoreIndex()
    shelf.reserve(1, 1, 10)
    with pytest.raises(KeyError):
        shelf.commit([(1, 0), (2, 0)])
    assert shelf.copies[1].committed is None


def test_refusal_names_the_exceeded_limit() -> None:
    uses = (StoreUse("tenant a on device 0", 100, 0), StoreUse("the node", 900, 1000))
    check(100, uses)
    with pytest.raises(Refusal) as caught:
        check(101, uses)
    refusal = caught.value
    assert refusal.reason == Reason.QUOTA_EXCEEDED and "the node" in refusal.message and refusal.fix
    assert {key: str(value) for key, value in refusal.details.items()} == {
        "requested": "101", "allowed": "1000", "in_use": "900", "limit": "the node",
    }  # fmt: skip


TORN = -1
KEYS = (1, 2)


class Crashes(RuleBasedStateMachine):
    """Two buffers that are always copied together, by a process that may end between any two steps. The content of an
    area is the number of the snapshot, or TORN while it is being written."""

    def __init__(self) -> None:
        super().__init__()
        self.index = StoreIndex()
        self.file: dict[int, int] = {}  # by area
        self.number = 0
        self.last_known = 0  # the last snapshot that the client knows to be complete
        for key in KEYS:
            self.index.reserve(key, key, 1)
        self.begin_process()

    def begin_process(self) -> None:
        """Starts a process from the front's copies, as a restore does."""
        self.to_front: deque[tuple[int, list[tuple[int, int]]]] = deque()
        self.to_device: deque[int] = deque()
        copies = self.index.copies
        self.areas = {key: SnapshotAreas(copies[key].offset, copies[key].span, copies[key].committed) for key in KEYS}  # type: ignore[arg-type]
        self.writing: dict[int, int] | None = None  # the area of each buffer
        self.unwritten: list[int] = []

    def offset(self, key: int, area: int) -> int:
        return self.areas[key].at(area)  # type: ignore[arg-type]

    @precondition(lambda self: all(areas.idle for areas in self.areas.values()))
    @rule()
    def begin(self) -> None:
        self.number += 1
        self.writing = {key: self.areas[key].begin() for key in KEYS}
        self.unwritten = list(KEYS)
        for key, area in self.writing.items():
            self.file[self.offset(key, area)] = TORN

    @precondition(lambda self: self.unwritten)
    @rule(last=st.booleans())
    def write(self, last: bool) -> None:
        assert self.writing is not None
        key = self.unwritten.pop(-1 if last else 0)
        self.file[self.offset(key, self.writing[key])] = self.number

    @precondition(lambda self: self.writing is not None and not self.unwritten)
    @rule()
    def send(self) -> None:
        assert self.writing is not None
        for areas in self.areas.values():
            areas.send()
        self.to_front.append((self.number, list(self.writing.items())))
        self.writing = None

    @precondition(lambda self: self.writing is not None)
    @rule()
    def fail(self) -> None:
        """Fails the snapshot because the host has no more memory: the areas are torn, and free."""
        for areas in self.areas.values():
            areas.fail()
        self.writing, self.unwritten = None, []

    @precondition(lambda self: self.to_front)
    @rule()
    def hear(self) -> None:
        number, areas = self.to_front.popleft()
        self.index.commit(areas)
        self.to_device.append(number)

    @precondition(lambda self: self.to_device)
    @rule()
    def learn(self) -> None:
        self.last_known = self.to_device.popleft()
        for areas in self.areas.values():
            areas.commit()

    @precondition(lambda self: all(copy.committed is not None for copy in self.index.copies.values()))
    @rule()
    def crash(self) -> None:
        """Loses every message in transit, in both directions."""
        self.index.discard_incomplete()
        self.begin_process()

    @invariant()
    def copies_are_complete(self) -> None:
        snapshots = set()
        for copy in self.index.copies.values():
            if copy.committed is None:
                assert self.last_known == 0
                return
            snapshots.add(self.file[copy.offset + copy.committed * span_of(1)])
        assert len(snapshots) == 1 and TORN not in snapshots, "the two are of different checkpoints, or torn"
        assert snapshots.pop() >= self.last_known, "a copy that the client knows to be complete is missing"


Crashes.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_a_process_that_ends_at_any_moment_leaves_whole_copies = Crashes.TestCase
