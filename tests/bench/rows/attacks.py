"""Attacks by unauthenticated clients on a daemon with tenants: the growth of the front, and the latency and rate of a
tenant during the attack.

Each attack runs on a separate daemon with one device of the CPU backend, because an attack concerns only the front; see
`tests.attacks`.
"""

from __future__ import annotations

from tests.attacks import rows
from tests.attacks.trial import Outcome, Trial
from tests.bench.context import Context
from tests.bench.stats import Row, Summary


def measure(context: Context) -> list[Row]:
    """Returns four rows for each attack, which lasts 5 or 10 seconds, after the same time without an attack."""
    measured: list[Row] = []
    for attack in rows.load():
        with Trial.of(attack) as trial:
            measured += _rows(attack, trial.run(attack, context.pick(5, 10)))
    return measured


def _rows(attack: rows.Row, outcome: Outcome) -> list[Row]:
    budget = attack.budget
    before = f"the same, before the attack{', over TCP' if attack.via == 'grpc' else ''}"
    note = ", ".join(f"{name}: {count:,}" for name, count in outcome.counts.items())
    if outcome.errors:
        note += f"; {len(outcome.errors)} errors at the tenant, the first: {outcome.errors[0]}"
    name = f"attack: {attack.name}"
    return [
        Row("attacks", f"{name}, growth of the front", "MiB", _one(outcome.growth_mib), "lower",
            at_least=budget.growth_mib, note=note),
        Row("attacks", f"{name}, growth that stays", "MiB", _one(outcome.kept_mib), "lower", at_least=budget.kept_mib),
        Row("attacks", f"{name}, 99th percentile of a tenant's step", "ms", _one(outcome.p99_ms), "lower", before,
            _one(outcome.p99_before_ms), budget.slower),
        Row("attacks", f"{name}, a tenant's steps", "1/s", _one(outcome.rate), "higher", before,
            _one(outcome.rate_before), budget.rate or None),
    ]  # fmt: skip


def _one(value: float) -> Summary:
    """Returns the summary of a value that was measured once."""
    return Summary.of([value])
