"""Trials of the snippets and refusals that the feature table lists."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu.toolchain import find_toolchain
from tests.support.cpu.feature_differences import DIFFERENCES
from tests.support.cpu.feature_refusals import REFUSALS
from tests.support.cpu.feature_runs import RUNS
from tests.support.cpu.feature_table import PENDING, SLOTS, Refused, Snippet, active, joined
from tests.support.cpu.kernels import Kernels, compile_source


def results(snippets: Sequence[Snippet]) -> list[str]:
    """Compiles `snippets` as one source; returns a description of each whose results differ from the expected ones."""
    expressions = [snippet.expression for snippet in snippets if snippet.expression]
    kernels = Kernels(joined(snippets), snippets[0].options, expressions)
    mismatches: list[str] = []
    for number, snippet in enumerate(snippets):
        out = np.full(SLOTS, np.nan)
        name = snippet.expression or f"feature_{number}"
        kernels(name, snippet.grid, snippet.block, out, shared=snippet.shared, cooperative=snippet.cooperative)
        values, expected = out[: len(snippet.expected)], np.asarray(snippet.expected, np.float64)
        if not np.allclose(values, expected, rtol=1e-6, atol=0):
            mismatches.append(f"{snippet.name}: {values.tolist()} instead of {expected.tolist()}")
    return mismatches


def refusal_mistakes(row: Refused) -> list[str]:
    """Returns a description of each source of `row` that is not refused with the row's name."""
    mistakes: list[str] = []
    for source in (row.source, *row.more):
        try:
            compile_source(find_toolchain(), source)
            mistakes.append(f"{row.name}: compiles: {source}")
        except Refusal as refusal:
            named = row.name in str(refusal.details.get("feature", ""))
            if refusal.reason is not Reason.UNSUPPORTED or not named or not refusal.fix:
                mistakes.append(f"{row.name}: {refusal}: {source}")
    return mistakes


def try_pending() -> None:
    """Prints for each pending row whether it works."""
    for row in (*RUNS, *DIFFERENCES, *REFUSALS):
        if row.name not in PENDING:
            continue
        child = os.fork()  # in a forked process, because a row may abort it
        if child == 0:
            try:
                mistakes = refusal_mistakes(row) if isinstance(row, Refused) else results([row])
            except Refusal as refusal:
                mistakes = [str(refusal)]
            print(f"{row.name}: {'; '.join(mistakes) or 'holds'}", flush=True)
            os._exit(0)
        if status := os.waitpid(child, 0)[1]:
            print(f"{row.name}: the process ended with {os.waitstatus_to_exitcode(status)}", flush=True)


SNIPPETS: list[Snippet] = [*active(RUNS), *(row for row in active(DIFFERENCES) if row.body)]


SOURCES = sorted({(snippet.options, snippet.global_names) for snippet in SNIPPETS})
