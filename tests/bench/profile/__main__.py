"""`python -m tests.bench.profile`: the budget of one launch, of pipelined launches, and of one small copy.

Each operation runs with and without probes by turns, in new clients, and once more for the number of calls. Times of
steps are without the cost of the probes, which is measured, too. Compiled modules (`make compiled`) have no probes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench import environment, processes
from tests.bench.processes import ROOT, Daemon
from tests.bench.profile import analysis, device
from tests.bench.profile.steps import CLIENT, DEVICE, OPERATIONS, TO_CLIENT, TO_DEVICE

PATH = os.pathsep.join(
    [*(str(ROOT / folder) for folder in ("client", "server", "proto", ".")), os.environ.get("PYTHONPATH", "")]
).rstrip(os.pathsep)
"""Search path of all processes, on which the sources precede compiled packages."""
FILES = 5
"""Number of files that the table names for a step."""
STREAMED = 5
"""Pipelined launches are repeated this number of times as often as operations with a wait."""


def measure(name: str, backend: str, count: int, rounds: int, folder: Path, unprobed: Daemon) -> dict[str, Any]:
    """Returns the budget of one operation; `unprobed` is a daemon without probes."""
    operation, control = OPERATIONS[name], folder / f"{name}.control"
    count *= 1 if operation.waits else STREAMED
    device.create(control)
    settings = {"PYTHONPATH": PATH}
    env = processes.environment(folder, settings)
    probing = settings | {device.VARIABLE: f"{control}:{name}:{backend}"}
    plain, timed = [], []
    with processes.daemon(folder, backend, 1, probing, module="tests.bench.profile.daemon") as probed:
        arguments = {"operation": name, "count": count}
        recording = arguments | {"target": probed.unix, "control": str(control)}
        for _ in range(rounds):
            timed.append(processes.run_worker("profile.client:recorded", recording | {"counts": False}, env))
            plain.append(processes.run_worker("profile.client:plain", arguments | {"target": unprobed.unix}, env))
        counted = processes.run_worker("profile.client:recorded", recording | {"counts": True}, env)
    control.unlink()
    return analysis.analyse(operation, plain, timed, counted, count)


def table(budget: dict[str, Any]) -> str:
    """Returns the table of one operation."""
    name, plain, total = budget["operation"], budget["plain_us"], budget["recorded_us"]
    lines = [
        f"{name}: {plain:.1f} us without probes, {total:.1f} us with them ({budget['event_us']:.2f} us each, which the "
        f"steps do not contain)",
        f"{budget['repetitions']} repetitions, {budget['left_out']} of them left out",
        f"{'us':>8}{'share':>7}{'Python':>8}{'C':>7}  step (calls of Python and C functions)",
    ]
    streamed = not any(row["part"] == TO_CLIENT for row in budget["steps"])
    awaited = [row for row in budget["steps"] if row["awaited"]]
    for part in (CLIENT, TO_DEVICE, DEVICE, TO_CLIENT):
        own = [row for row in awaited if row["part"] == part]
        if own:
            base = sum(row["us"] for row in (own if streamed else awaited))
            lines.append(_line(_sum(own), base, f"{part}, together" if len(own) > 1 else part))
    lines.append("")
    for row in budget["steps"]:
        base = sum(each["us"] for each in awaited if not streamed or each["part"] == row["part"])
        if row["awaited"]:
            lines.append(_line(row, base, f"{row['part']}: {row['step']}"))
        elif row["step"] != "idle":
            lines.append(_line(row, 0.0, f"{row['part']}, not awaited: {row['step']}"))
        if row["step"] != "idle":
            lines += _files(row["calls_by_file"])
    return "\n".join(lines)


def _files(calls_by_file: dict[str, float]) -> list[str]:
    """Returns a line with the files that have most calls in a step; none if they have few."""
    named = [f"{file} {calls:.0f}" for file, calls in list(calls_by_file.items())[:FILES] if calls >= 1]
    return [f"{'':32}{', '.join(named)}"] if named else []


def _sum(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {key: sum(row[key] for row in rows) for key in ("us", "python_calls", "c_calls")}


def _line(row: dict[str, Any], base: float, text: str) -> str:
    share = f"{100 * row['us'] / base:6.1f}%" if base else ""
    return f"{row['us']:8.2f}{share:>7}{row['python_calls']:8.1f}{row['c_calls']:7.1f}  {text}"


def _rounded(value: Any) -> Any:
    """Returns a JSON value with all numbers rounded to nanoseconds, or thousandths of a call."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return round(value, 3) if isinstance(value, float) else value


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.profile", description=__doc__)
    parser.add_argument("--backend", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--only", nargs="+", choices=tuple(OPERATIONS), default=list(OPERATIONS), metavar="OPERATION")
    parser.add_argument("--quick", action="store_true", help="one round of few repetitions")
    parser.add_argument("--count", type=int, default=2000, help="repetitions of an operation in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="prints JSON instead of tables")
    parser.add_argument("--out", type=Path, metavar="FILE", help="writes the JSON into this file as well")
    options = parser.parse_args()
    if options.quick:
        options.count, options.rounds = 200, 1
    budgets = []
    with tempfile.TemporaryDirectory(prefix="hp-") as name:
        folder = Path(name)
        with processes.daemon(folder, options.backend, 1, {"PYTHONPATH": PATH}) as unprobed:
            about = environment.describe(unprobed.unix, processes.environment(folder, {"PYTHONPATH": PATH}))
            backend = about["devices"][0]["backend"]
            for operation in options.only:
                try:
                    budgets.append(measure(operation, backend, options.count, options.rounds, folder, unprobed))
                except (processes.BenchError, ValueError) as error:
                    sys.exit(f"{operation}: {error}")
    document = json.dumps(_rounded({"about": about, "operations": budgets}), indent=1)
    if options.out:
        options.out.write_text(document + "\n")
    if options.json:
        print(document)
        return
    machine = about["machine"]
    print(f"{about['devices'][0]['name']}; {machine['processor']}, {machine['cores']} cores, Python {about['python']}")
    for budget in budgets:
        print(f"\n{table(budget)}")


if __name__ == "__main__":
    main()
