"""Runs attacks and prints the cost of each: ``python -m tests.attacks [MODULE or ROW ...]``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.attacks import rows, trial

_HEAD = ("attack", "front MiB", "grew", "kept", "fds", "kept", "steps/s", "then", "p99 ms", "then", "verdict")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help=f"modules ({', '.join(rows.MODULES)}) or rows; all where none is given"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack, and before it without one")
    parser.add_argument("--report", type=Path, help="where the outcomes go as JSON")
    chosen = parser.parse_args()
    try:
        selected = rows.load(chosen.names)
    except ValueError as error:
        parser.error(str(error))
    outcomes = {}
    bad = 0
    print(" | ".join(_HEAD), flush=True)
    for row in selected:
        with trial.Trial.of(row) as one:
            outcome = one.run(row, chosen.seconds)
        breaches = outcome.breaches(row.budget)
        bad += bool(breaches)
        cells = (
            row.name,
            f"{outcome.before_mib:.0f}",
            f"{outcome.growth_mib:+.1f}",
            f"{outcome.kept_mib:+.1f}",
            f"{outcome.descriptors:+d}",
            f"{outcome.descriptors_kept:+d}",
            f"{outcome.rate_before:.0f}",
            f"{outcome.rate:.0f}",
            f"{outcome.p99_before_ms:.1f}",
            f"{outcome.p99_ms:.1f}",
            "; ".join(breaches) or "good",
        )
        print(" | ".join(cells), flush=True)
        outcomes[row.name] = {**outcome.as_dict(), "breaches": breaches}
        if chosen.report is not None:
            chosen.report.write_text(json.dumps(outcomes, indent=1))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
