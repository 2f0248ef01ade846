"""The profile of `make profile`: steps and calls of a launch and of a copy, and how they are computed from events."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.bench.processes import ROOT
from tests.bench.profile import analysis
from tests.bench.profile.steps import CLIENT, DEVICE, END, START, TO_CLIENT, TO_DEVICE, Operation, Probe, Step

OPERATION = Operation(
    "an operation",
    (
        Step(CLIENT, "call", None),
        Step(TO_DEVICE, "send", Probe(("m:f",), "enter")),
        Step(DEVICE, "work", Probe(("m:g",), "enter")),
        Step(TO_CLIENT, "answer", Probe(("m:h",), "enter")),
        Step(CLIENT, "return", Probe(("m:f",), "leave")),
        Step(DEVICE, "rest", Probe(("m:h",), "leave"), awaited=False),
    ),
)


def test_a_step_lasts_until_the_next_one_begins() -> None:
    client = [(START, 0), (1, 1000), (4, 9000), (END, 10_000)]
    device = [(2, 500), (2, 3000), (3, 7000), (5, 8000)]  # the first one is a wake-up for other work
    rows, left_out = analysis.round_trips(OPERATION, client, device)
    assert (rows, left_out) == ([[1.0, 2.0, 4.0, 2.0, 1.0]], 0)


def test_a_repetition_without_one_of_the_events_is_left_out() -> None:
    client = [(START, 0), (1, 1000), (4, 9000), (END, 10_000)]
    assert analysis.round_trips(OPERATION, client, [(2, 3000)]) == ([], 1)
    assert analysis.round_trips(OPERATION, client, [(3, 3000), (2, 7000)]) == ([], 1)


def test_outliers_have_no_part_in_the_mean() -> None:
    assert analysis.middle([[1.0, 1.0], [2.0, 2.0], [4.0, 2.0], [900.0, 1.0]]) == [3.0, 2.0]


def test_the_cost_of_events_is_not_part_of_the_steps() -> None:
    client = {"events": [(START, 0), (1, 1000), (4, 9000), (END, 10_000)], "cost_us": 0.5}
    device = {"events": [(2, 3000), (3, 7000), (5, 8000), (2, 9500)], "cost_us": 0.5}
    counted = {
        "client": {"counts": [(START, "/x/client/hearth/a.py", "call", 20)]},
        "device": {"counts": [(2, "/x/server/hearthd/device/b.py", "c_call", 5)]},
    }
    budget = analysis.analyse(OPERATION, [9.0], [{"client": client, "device": device}], counted, 10)
    assert [row["us"] for row in budget["steps"]] == [0.5, 1.5, 3.5, 1.5, 0.5, 1.0]
    assert budget["steps"][0]["calls_by_file"] == {"hearth/a.py": 2.0}
    assert budget["steps"][2]["calls_by_file"] == {"hearthd/device/b.py": 0.5}


def test_segments_sum_up_to_the_whole() -> None:
    assert analysis.segments([(0, 0), (1, 1000), (0, 4000), (1, 4500), (-1, 5000)]) == {0: (1.5, 2), 1: (3.5, 2)}


@pytest.mark.timeout(180)
def test_the_program_finds_each_step() -> None:
    command = [sys.executable, "-m", "tests.bench.profile", "--quick", "--backend", "cpu", "--json"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)
    assert ended.returncode == 0, ended.stderr
    budgets = {budget["operation"]: budget for budget in json.loads(ended.stdout)["operations"]}
    assert list(budgets) == ["launch + synchronize", "set + get of 4 KiB", "pipelined launch"]
    for name, budget in budgets.items():
        assert budget["left_out"] <= budget["repetitions"] // 2
        for row in budget["steps"]:
            if not row["step"].startswith(("idle", "wait for room", "loop of")):
                assert row["us"] > 0, (name, row["step"])
        calls = {
            side: sum(row["python_calls"] for row in budget["steps"] if row["part"] == side)
            for side in (CLIENT, DEVICE)
        }
        assert 3 < calls[CLIENT] < 300 and 10 < calls[DEVICE] < 1000, (name, calls)
        if name != "pipelined launch":
            awaited = sum(row["us"] for row in budget["steps"] if row["awaited"])
            assert 0.5 * budget["recorded_us"] < awaited < budget["recorded_us"]
