"""Retries of a call, and their delays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import hearth
from hearth.endpoint import retry
from hearth.errors import ConnectError, HearthError, QuotaExceededError, broken
from hearth.failure import Failure


def refused(reason: str = "QUEUE_FULL", after: float | None = 0.0, **more: Any) -> HearthError:
    return QuotaExceededError("no room", reason=reason, retry_after=after, **more)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that advances only when the code under test sleeps."""
    clock = Clock()
    monkeypatch.setattr(retry.time, "sleep", clock.sleep)
    real = retry.Pauses
    monkeypatch.setattr(retry, "Pauses", lambda timeout: real(timeout, clock))
    return clock


class Work:
    """A function that raises each of `errors`, and afterwards returns its argument."""

    def __init__(self, *errors: HearthError) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self, value: int = 0) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return value


@pytest.mark.parametrize("reason", ["QUEUE_FULL", "QUOTA_EXCEEDED", "SESSION_LIMIT", "DRAINING", "DEVICE_UNAVAILABLE"])
def test_retryable_refusals_are_retried(clock: Clock, reason: str) -> None:
    work = Work(refused(reason), refused(reason))
    told: list[tuple[str, float]] = []
    again = hearth.retrying(on_retry=lambda error, pause: told.append((error.reason, pause)))(work)
    assert again(5) == 5 and work.calls == 3
    assert [name for name, _ in told] == [reason] * 2
    assert clock.now == pytest.approx(100 + sum(pause for _, pause in told))


@pytest.mark.parametrize(
    "error",
    [
        refused(after=None),
        refused("DEVICE_LOST", 0.5),
        refused("UNAUTHENTICATED", 0.5),
        refused("OUT_OF_MEMORY", 0.5),
        refused(failures=[Failure("launch f", 0, "QUEUE_FULL", "full")]),
        broken("cut"),
        hearth.SessionExpiredError("gone", reason="SESSION_EXPIRED"),
        hearth.CompileError("no", reason="COMPILE_FAILED"),
    ],
    ids=lambda error: error.reason,
)
def test_calls_that_may_have_begun_are_not_retried(clock: Clock, error: HearthError) -> None:
    work = Work(error)
    assert not error.retryable
    with pytest.raises(type(error)) as caught:
        hearth.retrying()(work)()
    assert caught.value is error and work.calls == 1 and clock.now == 100


@pytest.mark.parametrize(
    "error",
    [
        broken("cut"),
        ConnectError("absent", reason="DEVICE_UNAVAILABLE"),
        hearth.DeviceLostError("lost", reason="DEVICE_LOST", retry_after=0.5),
        hearth.BufferLostError("lost", reason="BUFFER_LOST"),
        hearth.SessionExpiredError("gone", reason="SESSION_EXPIRED"),
    ],
    ids=lambda error: f"{type(error).__name__}",
)
def test_idempotent_calls_are_retried_after_a_loss(clock: Clock, error: HearthError) -> None:
    work = Work(error)
    assert hearth.retrying(idempotent=True)(work)(7) == 7 and work.calls == 2


def test_other_errors_are_not_retried(clock: Clock) -> None:
    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        hearth.retrying(idempotent=True)(fail)()


def test_pauses_grow_and_have_jitter() -> None:
    low = retry.Pauses(1000, lambda: 0.0, lambda least, most: least)
    high = retry.Pauses(1000, lambda: 0.0, lambda least, most: most)
    error = refused(after=None)
    first = [low.after(error) for _ in range(12)]
    last = [high.after(error) for _ in range(12)]
    for shortest, longest in zip(first, last, strict=True):
        assert shortest is not None and longest is not None and shortest < longest
    assert first[0] == pytest.approx(0.08) and first[-1] == pytest.approx(4.0) and last[-1] == pytest.approx(6.0)
    assert sorted(map(float, filter(None, first))) == first


def test_no_retry_before_the_given_time() -> None:
    for least in (True, False):
        pauses = retry.Pauses(1000, lambda: 0.0, lambda low, high, least=least: low if least else high)
        found = pauses.after(refused(after=20.0))
        assert found is not None and 20 <= found <= 24


def test_no_wait_that_would_exceed_the_deadline(clock: Clock) -> None:
    work = Work(*[refused(after=4.0)] * 100)
    with pytest.raises(QuotaExceededError):
        hearth.retrying(timeout=10)(work)()
    assert work.calls == 3 and clock.now <= 110, "a third wait would end too late"
    work = Work(refused(after=60.0))
    with pytest.raises(QuotaExceededError):
        hearth.retrying(timeout=10)(work)()
    assert work.calls == 1


def test_attempt_receives_the_remaining_time(clock: Clock) -> None:
    given: list[float] = []

    def attempt(left: float) -> str:
        given.append(left)
        clock.sleep(1.0)
        if len(given) < 3:
            raise refused(after=1.0)
        return "open"

    assert retry.retry_until(attempt, 10) == "open"
    assert given[0] == 10 and 6 <= given[1] - given[2] + 5 <= 8
    assert given == sorted(given, reverse=True)


@pytest.mark.parametrize("timeout", [0, -1])
def test_invalid_timeouts_are_refused(timeout: float) -> None:
    with pytest.raises(hearth.ArgumentError, match="timeout"):
        hearth.retrying(timeout=timeout)


def test_the_function_keeps_its_name() -> None:
    @hearth.retrying()
    def train(rate: float) -> float:
        """Trains."""
        return rate

    assert train.__name__ == "train" and train.__doc__ == "Trains." and train(rate=2.0) == 2.0


def test_coroutines_are_awaited_again(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(refused(), refused())

    async def sleep(seconds: float) -> None:
        clock.sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)

    @hearth.retrying(timeout=30)
    async def ask(value: int) -> int:
        return work(value)

    assert asyncio.run(ask(3)) == 3 and work.calls == 3 and clock.now > 100
