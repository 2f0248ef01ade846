"""Slots for chunks: none has two users, none is lost, and copies leave some for chunks that are sent immediately."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.transfers.chunk_slots import ChunkSlots
from hearthd.shared.chunk_ring import (
    MAX_RING_BYTES,
    MAX_SLOTS,
    NONE,
    SMALLEST,
    Layout,
    from_message,
    layout,
    to_message,
)

steps = st.lists(
    st.tuples(st.sampled_from(["reserve", "drop", "send reserved", "send", "returned"]), st.integers(0, 20))
)


@given(st.integers(0, 9), steps)
def test_random_programs(count: int, program: list[tuple[str, int]]) -> None:
    slots = ChunkSlots(count)
    reserved: list[int] = []
    at_front: list[int] = []
    for action, number in program:
        if action == "reserve":
            slot = slots.reserve()
            assert (slot is None) == (len(reserved) >= count // 2 or len(reserved) + len(at_front) == count)
            if slot is not None:
                assert 0 <= slot < count and slot not in reserved + at_front
                reserved.append(slot)
        elif action == "send":
            slot = slots.send()
            assert (slot is None) == (len(reserved) + len(at_front) == count)
            if slot is not None:
                assert 0 <= slot < count and slot not in reserved + at_front
                at_front.append(slot)
        elif action == "returned" and at_front:
            slots.free(at_front.pop(number % len(at_front)))
        elif action != "returned" and reserved:
            slot = reserved.pop(number % len(reserved))
            if action == "drop":
                slots.drop(slot)
            else:
                assert slots.send(slot) == slot
                at_front.append(slot)
        assert slots.reserved == len(reserved) and slots.in_use == len(reserved) + len(at_front)
    for slot in reserved:
        slots.drop(slot)
    for slot in at_front:
        slots.free(slot)
    assert slots.in_use == 0
    assert {slots.send() for _ in range(count)} == set(range(count)), "none is lost"


def test_the_slot_that_was_used_last_is_used_next() -> None:
    slots = ChunkSlots(4)
    first, second = slots.send(), slots.send()
    assert first is not None and second is not None
    slots.free(first)
    assert slots.send() == first


def test_free_slot_cannot_be_released() -> None:
    slots = ChunkSlots(4)
    slot = slots.reserve()
    assert slot is not None
    with pytest.raises(ValueError, match="not with the front"):
        slots.free(slot)
    slots.send(slot)
    for again in (slots.drop, slots.send):
        with pytest.raises(ValueError, match="not reserved"):
            again(slot)
    slots.free(slot)
    for number in (slot, -1, 4):
        with pytest.raises(ValueError, match="not with the front"):
            slots.free(number)


# ---- the memory ----


@given(st.integers(1, 16 << 20))
def test_layout_has_slots_for_every_worthwhile_chunk_size(chunk: int) -> None:
    chosen = layout(chunk)
    if chunk < SMALLEST:
        assert chosen == NONE and chosen.bytes == 0
        return
    assert 1 <= chosen.slots <= MAX_SLOTS and chosen.slot_bytes >= chunk and chosen.slot_bytes % 4096 == 0
    assert chosen.bytes <= MAX_RING_BYTES and chosen.start(chosen.slots - 1) + chunk <= chosen.bytes
    assert from_message(to_message(chosen)) == chosen


@pytest.mark.parametrize(
    "body", [{}, {"slots": 4}, {"slots": "4", "slot_bytes": 4096}, {"slots": -1, "slot_bytes": -4096}]
)
def test_invalid_messages_have_no_slots(body: dict[str, object]) -> None:
    assert from_message(body) == Layout(0, 0)
