"""Small blocks never overlap, are found in constant time, and return their pages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.resources.size_classes import Block, SizeClasses

PAGE, SMALLEST, LARGEST = 256, 16, 64


def test_classes_are_powers_of_two() -> None:
    classes: SizeClasses[int] = SizeClasses(PAGE, SMALLEST, LARGEST)
    assert [classes.class_of(size) for size in (1, 15, 16, 17, 32, 33, 64)] == [16, 16, 16, 32, 32, 64, 64]


def test_a_page_serves_its_class_until_it_is_idle() -> None:
    classes: SizeClasses[str] = SizeClasses(PAGE, SMALLEST, LARGEST)
    assert classes.allocate(50) is None
    classes.add("p", 50)
    blocks = [classes.allocate(64) for _ in range(4)]
    assert [block and block.offset for block in blocks] == [0, 64, 128, 192]
    assert classes.allocate(64) is None and classes.allocate(16) is None and classes.idle() == []
    for block in blocks[1:]:
        assert block is not None
        classes.free(block)
    assert classes.idle() == [] and classes.in_use == 1
    assert blocks[0] is not None
    classes.free(blocks[0])
    assert classes.idle() == ["p"] and classes.idle() == [] and classes.pages == 0
    assert classes.allocate(64) is None, "blocks of a returned page are no longer available"


def test_the_most_recently_released_block_is_reused_first() -> None:
    classes: SizeClasses[str] = SizeClasses(PAGE, SMALLEST, LARGEST)
    classes.add("p", 16)
    first, second = classes.allocate(16), classes.allocate(16)
    assert first is not None and second is not None
    classes.free(first)
    assert classes.allocate(10) == first


def test_release_of_an_unused_block_is_refused() -> None:
    classes: SizeClasses[str] = SizeClasses(PAGE, SMALLEST, LARGEST)
    classes.add("p", 16)
    block = classes.allocate(16)
    assert block is not None
    classes.free(block)
    for invalid in (block, Block("q", 0, 16), Block("p", 16, 16)):
        with pytest.raises(ValueError, match="not in use"):
            classes.free(invalid)


@given(st.lists(st.integers(1, LARGEST) | st.tuples(st.integers(0, 30)), max_size=80))
def test_random_programs(program: list[int | tuple[int]]) -> None:
    classes: SizeClasses[int] = SizeClasses(PAGE, SMALLEST, LARGEST)
    used: list[Block[int]] = []
    pages = 0
    for action in program:
        if isinstance(action, tuple):
            if used:
                classes.free(used.pop(action[0] % len(used)))  # in any order
            continue
        block = classes.allocate(action)
        if block is None:
            classes.add(pages, action)
            pages += 1
            block = classes.allocate(action)
        assert block is not None and block.size >= action and block.offset + block.size <= PAGE
        for other_block in used:
            apart = (
                block.offset >= other_block.offset + other_block.size or other_block.offset >= block.offset + block.size
            )
            assert other_block.page != block.page or apart
        used.append(block)
    used_pages = {block.page for block in used}
    assert classes.in_use == len(used)
    assert set(classes.idle()) == set(range(pages)) - used_pages
