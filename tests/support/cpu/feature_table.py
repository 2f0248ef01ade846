"""CUDA C++ by feature: features that the CPU backend runs, features that it refuses, and differences from a GPU.

The lists (`feature_runs`, `feature_refusals`, `feature_differences`) are the source of the tables in
docs/cpu-backend.md, and test_features.py checks the backend against them: every snippet of RUNS is compiled and run
and its results are compared, and every source of REFUSALS must be refused under its name.

    python -m tests.support.cpu.feature_table            # writes the tables into the page
    python -m tests.support.cpu.feature_table --pending  # tries the rows of PENDING, one by one

To add a row, add an entry to one of the lists and write the page again.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tests.support.folders import ROOT

PAGE = ROOT / "docs" / "cpu-backend.md"
SLOTS = 64
"""Maximum number of doubles that a snippet can write to `out`."""

PENDING: frozenset[str] = frozenset()
"""Names of rows for features that the backend does not implement yet: these rows are neither tested nor shown."""


@dataclass(frozen=True)
class Runs:
    """A feature that runs: `body` is the body of a kernel that writes doubles to `out`, and `expected` the first of
    them."""

    section: str
    name: str
    text: str
    """The table's description, in Markdown."""

    body: str
    expected: Sequence[float]
    declarations: str = ""
    """Text before the kernel, in a namespace of the feature."""

    includes: tuple[str, ...] = ()
    block: int = 32
    grid: int = 1
    shared: int = 0
    cooperative: bool = False
    options: tuple[str, ...] = ()
    expression: str = ""
    """The kernel to launch if it is a template in the declarations; `body` is empty then."""

    global_names: bool = False
    """True if the declarations use names at global scope: such a row is compiled in a separate source with few
    includes."""


@dataclass(frozen=True)
class Refused:
    """A feature that is refused: `source` is a source whose compile fails with UNSUPPORTED and the feature's name."""

    name: str
    """The feature's name in the refusal: part of `details["feature"]`."""

    text: str
    """Names that programs use for the feature, in Markdown."""

    instead: str
    source: str
    more: tuple[str, ...] = ()
    """Further sources that are refused with the same name."""


@dataclass(frozen=True)
class Differs:
    """A difference from a GPU. If a program can observe it, `body` and `expected` are as in `Runs`."""

    name: str
    gpu: str
    here: str
    advice: str
    body: str = ""
    expected: Sequence[float] = ()
    declarations: str = ""
    includes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    block: int = 32
    grid: int = 1
    shared: int = 0
    cooperative: bool = False
    expression: str = ""
    global_names: bool = False


Snippet = Runs | Differs


Row = TypeVar("Row", Runs, Refused, Differs)


def joined(snippets: Sequence[Snippet]) -> str:
    """Joins snippets into one source, in which the kernel of snippet n is `feature_n`. Compile errors name the feature
    as the file."""
    includes = sorted({include for snippet in snippets for include in snippet.includes})
    lines = [f"#include <{include}>" for include in includes]
    for number, snippet in enumerate(snippets):
        lines.append(f'#line 1 "{snippet.name}"'.replace("`", "").replace("\\", ""))
        if snippet.global_names:
            lines.append(snippet.declarations)
        elif snippet.declarations:
            lines += [f"namespace of_{number} {{", snippet.declarations, "}", f"using namespace of_{number};"]
        if snippet.body:
            lines.append(f'extern "C" __global__ void feature_{number}(double* out) {{\n{snippet.body}\n}}')
    return "\n".join(lines) + "\n"


def active(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows that are not pending."""
    return [row for row in rows if row.name not in PENDING]


# ---- the documentation page ----


def tables() -> Mapping[str, str]:
    """Returns the page's tables by the names of their places."""
    from tests.support.cpu.feature_differences import DIFFERENCES
    from tests.support.cpu.feature_refusals import REFUSALS
    from tests.support.cpu.feature_runs import RUNS

    runs: list[str] = []
    section = ""
    for row in active(RUNS):
        if row.section != section:
            section = row.section
            runs += [*([""] if runs else []), f"### {section}", "", "| feature | |", "|---|---|"]
        runs.append(f"| {row.name} | {row.text} |")
    refused = ["| refused as | names that programs use | instead |", "|---|---|---|"]
    refused += [f"| {r.name} | {r.text} | {r.instead} |" for r in active(REFUSALS)]
    differs = ["| | on a GPU | on the CPU backend | in a program for both |", "|---|---|---|---|"]
    differs += [f"| {d.name} | {d.gpu} | {d.here} | {d.advice} |" for d in active(DIFFERENCES)]
    return {"runs": "\n".join(runs), "refused": "\n".join(refused), "differs": "\n".join(differs)}


def written(page: str) -> str:
    """Returns the page with its tables replaced by those generated from the lists."""
    for name, table in tables().items():
        section = re.compile(rf"(<!-- table {name}: [^>]*-->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        assert len(section.findall(page)) == 1, f"the page has no place for the table {name!r}"
        page = section.sub(lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}", page)  # type: ignore[misc]
    return page


def main() -> None:
    """Writes the page, or tries the pending rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pending", action="store_true", help="tries the pending rows and says which of them hold")
    if parser.parse_args().pending:
        from tests.support.cpu import feature_trials

        feature_trials.try_pending()
    else:
        PAGE.write_text(written(PAGE.read_text()))


if __name__ == "__main__":
    from tests.support.cpu import feature_table  # imports this module under the name by which the lists import it

    feature_table.main()
