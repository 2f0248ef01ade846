"""Each attack in its short form: the front stays within the budget and the tenant has no error.

The tenant's rate and latency are checked by `python -m tests.attacks`, on an otherwise idle machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.attacks import rows
from tests.attacks.rows import Budget, Row
from tests.attacks.trial import Outcome, Trial
from tests.support.daemon.harness import on_cpu

SECONDS = 0.8
"""Seconds of an attack, enough to reach the maximum that it can hold in the front, because each flooded resource has a
limit."""
CALM = 0.4

pytestmark = on_cpu


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tenant's kernels, compiled once for all trials."""
    return tmp_path_factory.mktemp("attacks")


@pytest.fixture(scope="module")
def ordinary(cache: Path) -> Iterator[Trial]:
    """A trial for all rows without special requirements."""
    with Trial(cache=cache) as trial:
        yield trial


@pytest.mark.parametrize("row", rows.load(), ids=lambda row: row.name.replace(" ", "-"))
def test_attack_stays_within_its_budget(row: Row, cache: Path, request: pytest.FixtureRequest) -> None:
    if row.config or row.open_files or row.via != "unix":
        with Trial.of(row, cache) as trial:
            outcome = trial.run(row, SECONDS, calm=CALM)
    else:
        outcome = request.getfixturevalue("ordinary").run(row, SECONDS, calm=CALM)
    assert not outcome.breaches(row.budget, timed=False), outcome


def test_every_breach_of_a_budget_is_named() -> None:
    outcome = Outcome(
        before_mib=80, growth_mib=40, kept_mib=9, descriptors=70, descriptors_kept=3, rate_before=100, rate=10,
        p99_before_ms=2, p99_ms=20, longest_ms=30, steps=8, errors=("UNAVAILABLE: gone",), counts={},
    )  # fmt: skip
    assert len(outcome.breaches(Budget(rate=0.5))) == 6
    assert len(outcome.breaches(Budget(rate=0.5), timed=False)) == 4
    assert not outcome.breaches(Budget(40, 9, 3, 10, 0.1))[1:]
    stopped = replace(outcome, steps=0)
    assert stopped.breaches(Budget(rate=0.5), timed=False)[1:2] == ["the tenant made no step during the attack"]


def test_attack_of_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="no attack is called nonsense; there are"):
        rows.load(["nonsense"])
