"""What repeats is found; what never does stops being looked up, and is tried again later."""

from __future__ import annotations

from hearthd.device.session.replay_cache import MOST, PATIENCE, PAUSE, ReplayCache


def test_what_was_remembered_is_known_until_it_is_forgotten() -> None:
    recall: ReplayCache[int] = ReplayCache()
    recall.remember(b"a", 1)
    assert recall.known.get(b"a") == 1
    recall.forget()
    assert recall.known.get(b"a") is None


def test_it_is_bounded() -> None:
    recall: ReplayCache[int] = ReplayCache()
    for index in range(3 * MOST):
        recall.remember(index.to_bytes(4, "big"), index)
        assert len(recall.known) <= MOST


def test_looking_up_in_vain_is_given_up_for_a_while() -> None:
    recall: ReplayCache[int] = ReplayCache()
    assert recall.worth_it()
    recall.report(0, PATIENCE)
    waited = 0
    while not recall.worth_it():
        waited += 1
    assert waited == PAUSE - 1
    recall.report(0, PATIENCE // 4)
    assert not recall.worth_it()


def test_what_is_found_earns_patience() -> None:
    recall: ReplayCache[int] = ReplayCache()
    for _ in range(1000):
        recall.report(2, 1)
        assert recall.worth_it()
