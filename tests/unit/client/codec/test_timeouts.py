"""Timeouts that callers pass."""

from __future__ import annotations

import math

import numpy as np
import pytest

import hearth
from hearth.codec import timeouts


@pytest.mark.parametrize("timeout", [0, -1, 0.0, math.nan, math.inf, 1e300, "5", [1], np.zeros(2), None, 1j])
def test_invalid_timeouts_are_refused(timeout: object) -> None:
    with pytest.raises(hearth.ArgumentError, match="it must be a number of seconds above 0") as caught:
        timeouts.check(timeout)  # type: ignore[arg-type]
    assert repr(timeout) in caught.value.message and caught.value.reason == "INVALID_ARGUMENT"


@pytest.mark.parametrize("timeout", [math.nan, math.inf, 2**63, 1e300, "5", [1], np.zeros(2), 1j])
def test_invalid_limits_of_waits_are_refused(timeout: object) -> None:
    with pytest.raises(hearth.ArgumentError, match="it must be a number of seconds") as caught:
        timeouts.check_wait(timeout)  # type: ignore[arg-type]
    assert repr(timeout) in caught.value.message and "None" in caught.value.fix


def test_limits_of_waits_become_floats() -> None:
    for timeout, seconds in ((3, 3.0), (0, 0.0), (-1, -1.0), (np.float32(0.5), 0.5)):
        assert timeouts.check_wait(timeout) == seconds and type(timeouts.check_wait(timeout)) is float  # type: ignore[arg-type]


def test_nanoseconds() -> None:
    assert timeouts.nanoseconds(None) == 0
    assert timeouts.nanoseconds(1.5) == timeouts.nanoseconds(np.float32(1.5)) == 1_500_000_000
    assert timeouts.nanoseconds(1e-12) == 1
    with pytest.raises(hearth.ArgumentError):
        timeouts.nanoseconds(0)
