"""Drop queue: when a batch is full; every buffer is in exactly one batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.resources.drop_queue import DropQueue


def test_below_both_thresholds_nothing_is_due() -> None:
    queue: DropQueue[int] = DropQueue(max_count=3, max_bytes=100)
    assert not queue.push(0, 40) and not queue.push(1, 40)


def test_due_by_count() -> None:
    queue: DropQueue[int] = DropQueue(max_count=3, max_bytes=100)
    assert [queue.push(index, 1) for index in range(3)] == [False, False, True]


def test_due_by_bytes() -> None:
    queue: DropQueue[int] = DropQueue(max_count=3, max_bytes=100)
    assert queue.push(0, 100)


def test_first_exceeded_threshold_is_due_and_close_clears_both() -> None:
    queue: DropQueue[int] = DropQueue(max_count=2, max_bytes=100)
    assert not queue.push(0, 60) and queue.push(1, 60)
    queue.close()
    assert (len(queue), queue.bytes) == (0, 0)
    assert not queue.push(2, 60)


def test_the_defaults_are_64_buffers_or_64_mib() -> None:
    queue: DropQueue[int] = DropQueue()
    assert [queue.push(index, 1) for index in range(64)] == [False] * 63 + [True]
    queue.close()
    assert not queue.push(0, (64 << 20) - 1) and queue.push(1, 1)


def test_more_bytes_than_32_bits_do_not_wrap() -> None:
    queue: DropQueue[int] = DropQueue(max_count=1000, max_bytes=1 << 40)
    for index in range(3):
        assert not queue.push(index, (1 << 32) - 1)
    assert queue.bytes == 3 * ((1 << 32) - 1)


def test_close_takes_the_staged_batch_and_starts_a_new_one() -> None:
    queue: DropQueue[str] = DropQueue(max_count=2)
    assert not queue.push("a", 1) and queue.push("b", 1)
    assert queue.close() == ["a", "b"] and len(queue) == 0
    assert not queue.push("c", 1), "the count restarted"
    assert queue.close() == ["c"]


def test_an_empty_batch_needs_no_event() -> None:
    queue: DropQueue[str] = DropQueue()
    assert queue.close() == [] and queue.close() == []


@given(st.lists(st.integers(0, 5) | st.none(), max_size=60))
def test_every_buffer_is_in_one_batch_in_order(program: list[int | None]) -> None:
    """An entry None closes a batch early, as at the end of a loop iteration."""
    queue: DropQueue[int] = DropQueue(max_count=4, max_bytes=9)
    batches: list[list[int]] = []
    for number, size in enumerate(program):
        if size is None or queue.push(number, size):
            batches.append(queue.close())
    batches.append(queue.close())
    pushed = [number for number, size in enumerate(program) if size is not None]
    assert [number for batch in batches for number in batch] == pushed
    assert all(len(batch) <= 4 for batch in batches)
