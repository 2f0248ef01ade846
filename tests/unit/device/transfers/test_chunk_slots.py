"""Slots for chunks: none has two users, none is lost, and copies leave some for chunks that are sent at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.transfers.chunk_slots import ChunkSlots
from hearthd.shared.chunk_ring import MOST, MOST_BYTES, NONE, SMALLEST, Layout, from_message, layout, to_message

steps = st.lists(st.tuples(st.sampled_from(["keep", "drop", "send kept", "send", "returned"]), st.integers(0, 20)))


@given(st.integers(0, 9), steps)
def test_random_programs(count: int, program: list[tuple[str, int]]) -> None:
    slots = ChunkSlots(count)
    kept: list[int] = []
    away: list[int] = []
    for step, which in program:
        if step == "keep":
            slot = slots.reserve()
            assert (slot is None) == (len(kept) >= count // 2 or len(kept) + len(away) == count)
            if slot is not None:
                assert 0 <= slot < count and slot not in kept + away
                kept.append(slot)
        elif step == "send":
            slot = slots.send()
            assert (slot is None) == (len(kept) + len(away) == count)
            if slot is not None:
                assert 0 <= slot < count and slot not in kept + away
                away.append(slot)
        elif step == "returned" and away:
            slots.free(away.pop(which % len(away)))
        elif step != "returned" and kept:
            slot = kept.pop(which % len(kept))
            if step == "drop":
                slots.drop(slot)
            else:
                assert slots.send(slot) == slot
                away.append(slot)
        assert slots.reserved == len(kept) and slots.in_use == len(kept) + len(away)
    for slot in kept:
        slots.drop(slot)
    for slot in away:
        slots.free(slot)
    assert slots.in_use == 0
    assert {slots.send() for _ in range(count)} == set(range(count)), "none is lost"


def test_the_slot_that_was_used_last_is_used_next() -> None:
    slots = ChunkSlots(4)
    first, second = slots.send(), slots.send()
    assert first is not None and second is not None
    slots.free(first)
    assert slots.send() == first


def test_free_slot_cannot_be_given_back() -> None:
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
    found = layout(chunk)
    if chunk < SMALLEST:
        assert found == NONE and found.bytes == 0
        return
    assert 1 <= found.slots <= MOST and found.slot_bytes >= chunk and found.slot_bytes % 4096 == 0
    assert found.bytes <= MOST_BYTES and found.start(found.slots - 1) + chunk <= found.bytes
    assert from_message(to_message(found)) == found


@pytest.mark.parametrize(
    "body", [{}, {"slots": 4}, {"slots": "4", "slot_bytes": 4096}, {"slots": -1, "slot_bytes": -4096}]
)
def test_invalid_messages_have_no_slots(body: dict[str, object]) -> None:
    assert from_message(body) == Layout(0, 0)
