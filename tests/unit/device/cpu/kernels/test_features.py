"""The lists of features, and the page generated from them, compared with the behaviour of the backend."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.cpu import feature_table
from tests.support.cpu.feature_differences import DIFFERENCES
from tests.support.cpu.feature_refusals import REFUSALS
from tests.support.cpu.feature_runs import RUNS
from tests.support.cpu.feature_table import PAGE, PENDING, SLOTS, Refused, active, joined, written
from tests.support.cpu.feature_trials import SNIPPETS, SOURCES, refusal_mistakes, results


@pytest.mark.parametrize("options, global_names", SOURCES)
def test_features_listed_as_supported_run(options: tuple[str, ...], global_names: bool) -> None:
    chosen = [s for s in SNIPPETS if s.options == options and s.global_names == global_names]
    assert results(chosen) == []


@pytest.mark.parametrize("row", active(REFUSALS), ids=lambda row: row.name)
def test_features_listed_as_unsupported_are_refused_by_name(row: Refused) -> None:
    assert refusal_mistakes(row) == []


@pytest.mark.gpu
def test_a_gpu_gives_the_results_of_the_list() -> None:
    cupy = pytest.importorskip("cupy")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        pytest.skip(f"CUDA cannot be used: {error}")
    failures: list[str] = []
    for row in RUNS:  # pending features as well
        options = [option for option in row.options if not option.startswith("-arch")]
        options += [] if any(option.startswith("-std") for option in options) else ["-std=c++17"]
        expressions = [row.expression] if row.expression else None
        try:
            module = cupy.RawModule(
                code=joined([row]),
                options=(*options, "-default-device"),
                name_expressions=expressions,
                enable_cooperative_groups=row.cooperative,
            )
            kernel = module.get_function(row.expression or "feature_0")
        except Exception as error:
            if "cannot open source file" not in str(error):  # otherwise a header is missing on this machine
                failures.append(f"{row.name}: {error}")
            continue
        out = cupy.full(SLOTS, cupy.nan)
        kernel((row.grid,), (row.block,), (out,), shared_mem=row.shared)
        result = out.get()[: len(row.expected)]
        if not np.allclose(result, row.expected, rtol=1e-6, atol=0):
            failures.append(f"{row.name}: {result.tolist()} instead of {list(row.expected)}")
    assert failures == []


def test_the_page_has_the_tables_of_the_lists() -> None:
    page = PAGE.read_text()
    assert written(page) == page, "run python -m tests.support.cpu.feature_table"


def test_names_are_unique_and_cells_fit_into_a_table() -> None:
    rows = [*RUNS, *REFUSALS, *DIFFERENCES]
    names = [row.name for row in rows]
    assert len(set(names)) == len(names) and set(names) >= PENDING
    table = "\n".join(feature_table.tables().values())
    assert all(line.count("|") in (3, 4, 5) for line in table.splitlines() if line.startswith("|"))
