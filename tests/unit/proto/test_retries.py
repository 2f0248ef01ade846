"""Retries: one table covers every reason."""

from __future__ import annotations

import asyncio

import pytest

import hearth
from hearth import errors
from hearth_proto import retries
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.retries import RETRIES, Retry, retry, retryable
from tests.support.folders import ROOT


def test_retry_table_has_every_reason() -> None:
    assert set(RETRIES) == {str(reason) for reason in Reason}


@pytest.mark.parametrize("reason", Reason)
def test_daemon_and_client_say_the_same(reason: Reason) -> None:
    for after in (None, 0.5):
        refusal = Refusal(reason, "no.", retry_after_s=after)
        error = errors.from_status(refusal.to_status())
        expected = after is not None and RETRIES[reason] is Retry.SAME
        assert refusal.retryable == error.retryable == retryable(reason, after) == expected


def test_unknown_reason_is_not_retried() -> None:
    assert retry("FROM_THE_FUTURE") is Retry.NEVER and not retryable("FROM_THE_FUTURE", 1.0)


def test_broken_calls_are_not_retryable() -> None:
    error = errors.from_status(Refusal(Reason.DRAINING, "no.", retry_after_s=0.5).to_status())
    assert error.retryable
    error.broken = True
    assert not error.retryable


@pytest.mark.parametrize("kind", ["called", "awaited"])
def test_retried_reasons_equal_those_of_the_table(kind: str) -> None:
    """The table applies to functions and to coroutine functions."""
    again = {name for name in RETRIES if _tries(name, kind) > 1}
    assert again == {name for name, kind in RETRIES.items() if kind is not Retry.NEVER}


def _tries(reason: str, kind: str) -> int:
    tries = []

    def fails() -> None:
        tries.append(reason)
        if len(tries) == 1:
            raise hearth.HearthError("no", reason=reason, retry_after=0.0)

    async def fails_later() -> None:
        fails()

    repeated = hearth.retrying(timeout=5, idempotent=True)
    try:
        if kind == "called":
            repeated(fails)()
        else:
            asyncio.run(repeated(fails_later)())  # type: ignore[arg-type]
    except hearth.HearthError:
        pass
    return len(tries)


def test_the_documentation_has_the_same_table() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text()
    section = text[text.index("## Errors") : text.index("## Direct connections")]
    for name, kind in retries.RETRIES.items():
        if kind is not Retry.NEVER:
            row = next((line for line in section.splitlines() if f"`{name}`" in line and line.startswith("|")), "")
            assert row.startswith(f"| {kind.value} |"), name
