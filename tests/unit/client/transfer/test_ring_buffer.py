"""The ring's slots: none is taken twice, none is lost, and no thread waits for a slot that never comes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.transfer.copy_threads import MAX_THREADS
from hearth.transfer.ring_buffer import MIN_PIECE_BYTES, SLOT_BYTES, Ring, Slot, piece_bytes, piece_starts
from tests.support.timing import LATE

STALL = 0.05


def ring_of(count: int, most: int | None = None, stall: float = STALL) -> Ring:
    """Returns a ring of up to `count` slots, of which only `most` can be made."""
    made: list[Slot] = []

    def make() -> Slot | None:
        if most is not None and len(made) >= most:
            return None
        made.append(Slot(None, len(made) + 1))  # type: ignore[arg-type]
        return made[-1]

    return Ring(make, count, stall)


# ---- pieces ----


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 16), st.integers(1, 1 << 12))
def test_pieces_are_whole_rows_and_make_the_whole(rows: int, most: int, width: int) -> None:
    size = rows * width
    starts = piece_starts(size, most, width)
    each = starts.step
    assert each % width == 0 and (each <= most or each == width)
    assert starts[0] == 0 and starts[-1] < size <= starts[-1] + each and size % width == 0


@given(st.integers(1, 1 << 40))
def test_pieces_fit_slots_and_are_worth_a_command(size: int) -> None:
    each = piece_bytes(size)
    assert MIN_PIECE_BYTES <= each <= SLOT_BYTES
    assert each in (SLOT_BYTES, MIN_PIECE_BYTES) or size / each > 2 * MAX_THREADS


# ---- slots ----

steps = st.lists(st.tuples(st.sampled_from(["take", "send", "give", "reclaim", "give up"]), st.integers(0, 2)))


@given(steps, st.integers(1, 4))
def test_no_slot_has_two_holders_and_none_is_lost(steps: list[tuple[str, int]], count: int) -> None:
    ring = ring_of(count)
    transfers = [object(), object(), object()]
    held: list[list[Slot]] = [[], [], []]
    sent: list[Slot] = []
    for what, who in steps:
        mine = held[who]
        if what == "take":
            slot = ring.acquire(transfers[who])
            free = count - sum(map(len, held)) - len(sent)
            assert (slot is not None) == (free > 0)
            if slot is not None:
                assert not any(slot is each for each in [*held[0], *held[1], *held[2], *sent])
                mine.append(slot)
        elif what == "send" and mine:
            mine[-1].sent = True
            sent.append(mine.pop())
        elif what == "give" and (mine or sent):
            slot = sent.pop(0) if sent else mine.pop()
            ring.release(slot)
            ring.release(slot)  # a second call does nothing
        elif what == "reclaim":
            ring.reclaim(transfers[who])
            mine.clear()
        elif what == "give up" and sent:
            slot = sent.pop()
            ring.discard(slot)
            ring.release(slot)  # the answer arrives nevertheless
    for slot in sent:
        ring.release(slot)
    for transfer in transfers:
        ring.reclaim(transfer)
    assert ring.idle == ring.slot_count <= count
    assert all(ring.acquire(None) is not None for _ in range(count))
    assert ring.acquire(None) is None


def test_slots_are_created_on_demand() -> None:
    ring = ring_of(4)
    for _ in range(3):
        slot = ring.acquire(self := object())
        assert slot is not None and slot.holder is self
        ring.release(slot)
    assert ring.slot_count == 1


def test_a_ring_works_with_fewer_slots_than_requested() -> None:
    ring = ring_of(4, most=2)
    taken = [ring.acquire(1), ring.acquire(1)]
    assert None not in taken and ring.acquire(1) is None
    ring.release(taken[0])  # type: ignore[arg-type]
    assert ring.acquire(1, wait=lambda: True) is taken[0]
    assert ring_of(4, most=0).acquire(1, wait=lambda: True) is None


def test_take_waits_while_slots_are_returned() -> None:
    ring = ring_of(1, stall=30.0)
    slot = ring.acquire(1)
    assert slot is not None
    timer = threading.Timer(STALL / 2, ring.release, (slot,))
    timer.start()
    assert ring.acquire(2, wait=lambda: True) is slot
    timer.join()


def test_take_gives_up_on_a_stalled_ring() -> None:
    ring = ring_of(1)
    ring.acquire(1)
    began = time.monotonic()
    assert ring.acquire(2, wait=lambda: True) is None
    assert STALL / 2 < time.monotonic() - began < LATE


def test_wait_for_a_slot_ends_when_it_is_no_longer_wanted() -> None:
    ring = Ring(lambda: Slot(None, 1), 1, stall=60.0)  # type: ignore[arg-type]
    ring.acquire(1)
    stopped = threading.Event()
    taken: list[Slot | None] = []
    waiter = threading.Thread(target=lambda: taken.append(ring.acquire(2, wait=lambda: not stopped.is_set())))
    waiter.start()
    stopped.set()
    ring.wake()
    waiter.join(20)
    assert taken == [None]


def test_an_interruption_while_a_slot_is_made_leaves_room_for_another() -> None:
    def interrupted() -> Slot:
        if not tries:
            tries.append(1)
            raise KeyboardInterrupt
        return Slot(None, 1)  # type: ignore[arg-type]

    tries: list[int] = []
    ring = Ring(interrupted, 1)
    with pytest.raises(KeyboardInterrupt):
        ring.acquire(1)
    assert ring.acquire(1) is not None


def test_an_ended_ring_has_no_slots_and_accepts_none() -> None:
    ring = ring_of(4)
    slot, waits = ring.acquire(1), ring.acquire(1)
    assert slot is not None and waits is not None
    ring.release(waits)
    ring.end()
    ring.release(slot)
    assert ring.acquire(1, wait=lambda: True) is None
    assert ring.idle == ring.slot_count == 0


def in_threads(count: int, work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and not any(thread.is_alive() for thread in threads)


def test_many_threads_on_few_slots() -> None:
    ring = ring_of(3, stall=30.0)
    users: dict[int, int] = {}

    def work(number: int) -> None:
        drawn = random.Random(number)
        for _ in range(200):
            slot = ring.acquire(number, wait=lambda: True)
            assert slot is not None
            assert users.setdefault(id(slot), number) == number
            if drawn.random() < 0.1:
                time.sleep(0)
            del users[id(slot)]
            if drawn.random() < 0.2:
                ring.reclaim(number)
            else:
                ring.release(slot)

    in_threads(8, work)
    assert ring.idle == ring.slot_count == 3
