"""Attribution of a lost process to a session, and quarantine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason
from hearthd.front.supervisor.fault_policy import FaultQuarantine, culprit


@pytest.mark.parametrize(
    ("label", "details", "working", "blamed"),
    [
        ("fault", {"sessions": "a"}, {"a", "b"}, "a"),
        ("fault", {"sessions": "a, a"}, (), "a"),
        ("fault", {"sessions": "a, b"}, {"a"}, None),
        ("fault", {}, {"a"}, None),
        ("signal", {"signal": "SIGSEGV"}, {"a"}, "a"),
        ("signal", {"signal": "SIGSEGV"}, {"a", "b"}, None),
        ("signal", {"signal": "SIGSEGV"}, (), None),
        ("signal", {"signal": "SIGSEGV", "sessions": "b"}, {"a", "b"}, "b"),
        ("signal", {"signal": "SIGSEGV", "sessions": "a, b"}, {"a"}, None),
        ("signal", {"signal": "SIGSEGV", "sender": "7"}, {"a"}, None),
        ("signal", {"signal": "SIGKILL"}, {"a"}, None),
        ("signal", {"signal": "SIGKILL", "sessions": "a"}, {"a"}, None),
        ("stuck", {}, {"a"}, None),
        ("restart", {}, {"a"}, None),
        ("exit", {"exit_code": "1"}, {"a"}, None),
    ],
)
def test_fault_is_attributed_only_to_a_single_suspect(
    label: str, details: dict[str, str], working: set[str], blamed: str | None
) -> None:
    assert culprit(label, details, working) == blamed


@given(st.lists(st.floats(0, 30), max_size=40), st.integers(0, 6))
def test_one_fault_too_many_within_the_window_quarantines(gaps: list[float], most: int) -> None:
    quarantine = FaultQuarantine(most, 60.0)
    now, times, barred = 0.0, [], False
    for gap in gaps:
        now += gap
        times.append(now)
        over = sum(now - each <= 60.0 for each in times) > most
        assert quarantine.record_fault("s", now) == (over and not barred)
        barred = barred or over
        assert (quarantine.refusal("s") is not None) == barred
        assert quarantine.refusal("t") is None


def test_refusal_and_end_of_a_quarantined_session() -> None:
    quarantine = FaultQuarantine(1, 60.0)
    assert not quarantine.record_fault("s", 0.0)
    assert quarantine.record_fault("s", 1.0)
    refusal = quarantine.refusal("s")
    assert refusal is not None
    assert refusal.reason == Reason.SESSION_BARRED and 'isolation="dedicated"' in refusal.fix
    assert refusal.details["faults"] == "2" and refusal.details["allowed"] == "1"
    quarantine.forget("s")
    assert quarantine.refusal("s") is None and not quarantine.record_fault("s", 2.0)
    quarantine.record_fault("s", 2.0)
    quarantine.lift_quarantine()
    assert quarantine.refusal("s") is None
