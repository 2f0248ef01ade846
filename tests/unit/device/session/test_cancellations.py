"""Cancellations of a session: which commands are dropped, and until when."""

from __future__ import annotations

from hearthd.device.session.cancellations import DROPPED, MAX_ACTIVE, MAX_SPLIT, Cancellation, Cancellations


def test_scope_of_a_cancellation() -> None:
    everything, stream, one = Cancellation(0, True, 0), Cancellation(5, False, 0), Cancellation(0, False, 9)
    for kind in DROPPED:
        assert everything.covers(kind, 7, 0) and everything.covers(kind, 5, 9)
        assert stream.covers(kind, 5, 3) and not stream.covers(kind, 7, 0)
        assert one.covers(kind, 7, 9) and not one.covers(kind, 0, 0)
    for kind in ("allocate", "free", "sync", "record_event", "create_stream", "collective", "cancel", ""):
        assert not everything.covers(kind, 0, 0)


def test_a_cancellation_lasts_until_its_command_is_executed() -> None:
    cancellations = Cancellations()
    assert not cancellations
    cancellation = Cancellation(0, True, 0)
    assert cancellations.begin(4, cancellation) and not cancellations.begin(4, Cancellation(0, True, 0))
    assert cancellations.find("launch", 0, 0) is cancellation
    assert cancellations.find("sync", 0, 0) is None
    assert cancellations.end(4) is cancellation
    assert not cancellations and cancellations.end(4) is None


def test_a_cancellation_that_arrives_late_has_no_effect() -> None:
    cancellations = Cancellations()
    assert cancellations.end(6) is None
    assert not cancellations.begin(6, Cancellation(0, True, 0))
    assert not cancellations.begin(5, Cancellation(0, True, 0))
    assert cancellations.begin(7, Cancellation(0, True, 0))
    assert cancellations.begin(8, Cancellation(0, True, 0))
    cancellations.end(8)  # commands are executed in the order of their numbers: number 7 will not be
    assert not cancellations


def test_the_next_attachment_begins_without_cancellations() -> None:
    cancellations = Cancellations()
    cancellations.end(6)
    cancellations.begin(7, Cancellation(0, True, 0))
    cancellations.clear()
    assert not cancellations
    assert cancellations.begin(1, Cancellation(0, True, 0))


def test_the_number_of_cancellations_is_bounded() -> None:
    cancellations = Cancellations()
    assert all(cancellations.begin(number, Cancellation(0, True, 0)) for number in range(1, MAX_ACTIVE + 1))
    assert not cancellations.begin(MAX_ACTIVE + 1, Cancellation(0, True, 0))


def test_a_split_copy_is_kept_until_all_its_pieces_are_done() -> None:
    cancellations = Cancellations()
    split = cancellations.split(3, 10)
    assert not cancellations.has_begun(3)
    cancellations.piece_done(split, 4)
    assert cancellations.has_begun(3) and cancellations.split(3, 10) is split
    cancellations.piece_done(split, 6)
    assert not cancellations.has_begun(3) and cancellations.split(3, 10) is not split


def test_the_number_of_split_copies_is_bounded() -> None:
    cancellations = Cancellations()
    first, second = cancellations.split(1, 10), cancellations.split(2, 10)
    for number in range(3, MAX_SPLIT + 2):
        cancellations.split(number, 10)
    assert cancellations.split(2, 10) is second and cancellations.split(1, 10) is not first
