"""Pauses before a lost process is replaced: repeated faults of one session do not delay other sessions."""

from __future__ import annotations

import pytest

from hearthd.front.supervisor.isolation import ProcessLoss, pause


@pytest.mark.parametrize(
    ("culprits", "alone", "seconds"),
    [
        ([], False, 0.0),
        (["a", "a"], False, 0.0),
        # The others are not responsible; after devices.max_faults the session no longer shares a process.
        (["a"] * 5, False, 0.0),
        (["a"] * 3, True, 0.1),
        (["a"] * 5, True, 0.4),
        (["a", "b", "a", "b"], False, 0.0),
        (["a", "b", "c"], False, 0.1),
        ([None] * 3, False, 0.1),
        ([None, None, "a", "a"], False, 0.1),
        ([None] * 40, False, 2.0),
        (["a"] * 40, True, 2.0),
    ],
)
def test_the_pause(culprits: list[str | None], alone: bool, seconds: float) -> None:
    losses = [ProcessLoss(float(at), culprit) for at, culprit in enumerate(culprits)]
    assert pause(losses, alone) == pytest.approx(seconds)
