"""Images in memory: the most recently used ones, limited in number and in bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.backend.compiler import Assembly, Image, Job, Source
from hearthd.device.compiler.image_store import ImageStore


def test_least_recently_used_image_is_evicted() -> None:
    store = ImageStore(entries=2)
    jobs: list[Job] = [Source("a"), Source("b"), Assembly(b"c")]
    store.put(jobs[0], Image(b"A"))
    store.put(jobs[1], Image(b"B"))
    assert store.get(jobs[0]) == Image(b"A")
    store.put(jobs[2], Image(b"C"))
    assert [store.get(job) is not None for job in jobs] == [True, False, True]


def test_bytes_count_as_well_as_entries() -> None:
    store = ImageStore(entries=100, size=1000)
    for number in range(10):
        store.put(Source(str(number)), Image(bytes(300)))
    assert len(store) == 3 and store.size <= 1000
    store.put(Source("x" * 900), Image(bytes(50)))
    assert len(store) == 1, "the inputs of the image are kept, too, and count"
    store.put(Source("large"), Image(bytes(2000)))
    assert store.get(Source("large")) is None and store.get(Source("x" * 900)) is not None
    store.put(Source("h", headers=(("n", "t" * 980),)), Image(b""))
    assert len(store) == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 400)), max_size=60))
def test_total_size_is_exact_after_any_sequence(steps: list[tuple[int, int]]) -> None:
    store = ImageStore(entries=4, size=1000)
    for name, size in steps:
        store.put(Source(str(name)), Image(bytes(size)))
        stored = [(str(number), store.get(Source(str(number)))) for number in range(10)]
        total = sum(len(name) + len(image.code) for name, image in stored if image is not None)
        assert store.size == total <= 1000 and len(store) <= 4
