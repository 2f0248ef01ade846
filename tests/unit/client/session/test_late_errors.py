"""Late errors: the calls that raise them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from hearth.errors import CancelledError, HearthError, TransferError
from hearth.failure import Failure
from hearth.session.late_errors import NO_STREAM, DeferredErrors, current_origin

FAILURES = [Failure("launch add", 1, "LAUNCH_FAILED", "why", merged=2)]
A = TransferError("a", reason="TRANSFER_ABORTED", failures=FAILURES)
B = TransferError("b", reason="TRANSFER_ABORTED", failures=FAILURES)
LOSS = HearthError("loss")


@pytest.fixture
def deferred() -> DeferredErrors:
    """Two errors of this thread's work: A on stream 1 and buffer 7, B on stream 2 and buffer 8."""
    made = DeferredErrors()
    made.add(A, current_origin("write", 1, 7))
    made.add(B, current_origin("read", 2, 8))
    return made


def elsewhere(deferred: DeferredErrors, stream: int | None, buffer: int = 0) -> HearthError | None:
    """Returns the error that another thread takes."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(deferred.pop_matching, stream, buffer).result()


def told(deferred: DeferredErrors) -> list[HearthError]:
    return [error for error, _ in deferred]


def test_originating_thread_gets_its_error_from_any_wait(deferred: DeferredErrors) -> None:
    assert deferred.pop_matching(3) is A and deferred.pop_matching(NO_STREAM) is B and not deferred
    assert deferred.pop_matching() is None


def test_another_thread_gets_errors_of_the_stream_it_waits_for(deferred: DeferredErrors) -> None:
    assert elsewhere(deferred, 3) is None and elsewhere(deferred, NO_STREAM) is None
    assert elsewhere(deferred, 2) is B and elsewhere(deferred, 2) is None
    assert told(deferred) == [A]


def test_another_thread_gets_errors_of_the_buffer_it_reads(deferred: DeferredErrors) -> None:
    assert elsewhere(deferred, 3, 9) is None and elsewhere(deferred, 3, 8) is B and told(deferred) == [A]


def test_wait_for_all_streams_gets_all_errors(deferred: DeferredErrors) -> None:
    assert elsewhere(deferred, None) is A and elsewhere(deferred, None) is B and elsewhere(deferred, None) is None


def test_error_without_an_origin_is_raised_to_any_thread(deferred: DeferredErrors) -> None:
    deferred.add(LOSS)
    assert elsewhere(deferred, 3) is LOSS and elsewhere(deferred, 3) is None and len(deferred) == 2


def test_pop_all_takes_the_errors_that_concern_the_stream(deferred: DeferredErrors) -> None:
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(deferred.pop_all, 1).result() == [A]
    assert deferred.pop_all() == [B] and deferred.pop_all() == []


def test_error_of_a_copy_lists_the_copy() -> None:
    deferred = DeferredErrors()
    deferred.add(
        CancelledError("dropped", reason="CANCELLED", details={"caller": "a.py:3"}), current_origin("read", 5, 7)
    )
    (error,) = deferred.pop_all()
    assert type(error) is CancelledError
    assert error.failures == [Failure("read", 5, "CANCELLED", "dropped", caller="a.py:3")]


def test_number_of_late_errors_is_bounded() -> None:
    deferred = DeferredErrors()
    for number in range(100):
        deferred.add(HearthError(str(number)), current_origin("write", number, 7))
    kept = told(deferred)
    assert len(kept) == 64 and str(kept[-1]) == "99" and str(kept[0]) == "36"


def test_a_full_queue_counts_further_errors_of_a_stream() -> None:
    deferred = DeferredErrors()
    deferred.add(LOSS)
    for number in range(100):
        deferred.add(HearthError(str(number)), current_origin("write", 1, number))
    errors = deferred.pop_all()
    assert len(errors) == 64 and errors[0] is LOSS and errors[-1].message == "99"
    assert sum(1 + failure.merged for error in errors for failure in error.failures) == 100
