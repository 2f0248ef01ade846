"""Persistent windows nest; the blocks that they keep are reused at exactly the same size, and only by the same
session."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.session.persistent import PersistentBlocks


def test_windows_nest() -> None:
    blocks: PersistentBlocks[str] = PersistentBlocks()
    assert not blocks.window
    for _ in range(3):
        blocks.enter()
        assert blocks.window
    for open_windows in (2, 1, 0):
        blocks.leave()
        assert blocks.window == bool(open_windows)


def test_a_window_that_is_not_open_is_not_closed() -> None:
    blocks: PersistentBlocks[str] = PersistentBlocks()
    for _ in range(3):
        with pytest.raises(Refusal) as caught:
            blocks.leave()
        assert caught.value.reason is Reason.INVALID_ARGUMENT and caught.value.fix
    blocks.enter()
    assert blocks.window, "the refused command changed nothing"


def test_only_the_exact_size_is_reused() -> None:
    blocks: PersistentBlocks[str] = PersistentBlocks()
    assert blocks.keep(1024, "a") and blocks.keep(1024, "b") and blocks.keep(2048, "c")
    assert blocks.bytes == 4096
    assert blocks.pop(512) is None and blocks.pop(1536) is None and blocks.pop(4096) is None
    assert blocks.pop(1024) == "b" and blocks.pop(1024) == "a" and blocks.pop(1024) is None
    assert blocks.bytes == 2048 and blocks.pop(2048) == "c" and blocks.bytes == 0


def test_a_cleanup_and_the_end_release_everything() -> None:
    blocks: PersistentBlocks[str] = PersistentBlocks()
    blocks.keep(1024, "a")
    blocks.keep(2048, "b")
    assert sorted(blocks.clear()) == ["a", "b"] and blocks.bytes == 0 and blocks.pop(1024) is None
    blocks.enter()
    blocks.keep(1024, "c")
    assert blocks.close() == ["c"] and not blocks.window
    assert not blocks.keep(1024, "d") and blocks.bytes == 0 and blocks.pop(1024) is None


@given(st.lists(st.tuples(st.sampled_from(["keep", "take", "clear"]), st.integers(1, 4))))
def test_no_block_is_lost_or_given_twice(program: list[tuple[str, int]]) -> None:
    blocks: PersistentBlocks[int] = PersistentBlocks()
    kept: dict[int, int] = {}
    for number, (step, size) in enumerate(program):
        if step == "keep":
            assert blocks.keep(size, number)
            kept[number] = size
        elif step == "take":
            block = blocks.pop(size)
            assert block is not None or size not in kept.values()
            assert block is None or kept.pop(block) == size
        else:
            assert sorted(blocks.clear()) == sorted(kept)
            kept.clear()
        assert blocks.bytes == sum(kept.values())
