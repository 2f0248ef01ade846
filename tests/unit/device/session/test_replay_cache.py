"""Replay cache: repeated records are found; records that never repeat stop being looked up, and are tried again
later."""

from __future__ import annotations

from hearthd.device.session.replay_cache import MAX_CREDIT, MAX_RECORDS, PAUSE, ReplayCache


def test_entries_are_known_until_forgotten() -> None:
    cache: ReplayCache[int] = ReplayCache()
    cache.remember(b"a", 1)
    assert cache.entries.get(b"a") == 1
    cache.forget()
    assert cache.entries.get(b"a") is None


def test_cache_is_bounded() -> None:
    cache: ReplayCache[int] = ReplayCache()
    for index in range(3 * MAX_RECORDS):
        cache.remember(index.to_bytes(4, "big"), index)
        assert len(cache.entries) <= MAX_RECORDS


def test_lookups_without_hits_are_suspended() -> None:
    cache: ReplayCache[int] = ReplayCache()
    assert cache.should_look_up()
    cache.report(0, MAX_CREDIT)
    waited = 0
    while not cache.should_look_up():
        waited += 1
    assert waited == PAUSE - 1
    cache.report(0, MAX_CREDIT // 4)
    assert not cache.should_look_up()


def test_cache_with_hits_stays_in_use() -> None:
    cache: ReplayCache[int] = ReplayCache()
    for _ in range(1000):
        cache.report(2, 1)
        assert cache.should_look_up()
