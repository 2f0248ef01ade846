"""From the start of a new process to its first result in hand: interpreter, imports, upload, cached kernel, read.

Two rows have the bounds. One is of the whole process, as a user waits for it. Hearth's and CuPy's both begin with the
interpreter and NumPy, which take longer than either bound leaves on some machines: no client of NumPy's arrays can go
below that. So the other row is of what each adds to it, the difference to NumPy alone in the same turn; its bounds are
on the ratio of those. A row without bounds is against a process that has to compile its kernel, as the first in a new
container or in a job of CI has: a node of Hearth's compiles it once for all. The last row is of what Hearth adds until
the process is gone, its session closed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.bench import processes
from tests.bench.context import Context
from tests.bench.stats import Row, Samples, Summary

_PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
_EXPECTED = f"first {2.0 * ((1 << 16) - 1)}"


def measure(context: Context) -> list[Row]:
    """Hearth, CuPy and what both begin with in turn; the first of each fills the compile caches and the page cache, and
    is not counted."""
    programs = {
        "hearth": [str(_PROGRAMS / "first_hearth.py"), context.daemon.unix],
        "numpy": [str(_PROGRAMS / "first_numpy.py")],
    }
    if context.cuda:
        programs["cupy"] = programs["compiling"] = [str(_PROGRAMS / "first_cupy.py")]
    firsts: dict[str, list[float]] = {name: [] for name in programs}
    ends: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(context.pick(5, 15) + 1):
        for name, command in programs.items():
            with tempfile.TemporaryDirectory(dir=context.folder) as empty:
                extra = {"CUPY_CACHE_DIR": empty} if name == "compiling" else {}
                first, end = _once(context, command, extra)
            if turn:
                firsts[name].append(first)
                ends[name].append(end)
    return rows(firsts, ends)


def rows(firsts: Samples, ends: Samples) -> list[Row]:
    """Of the seconds to the first result and to the end of the process, by program; a turn's are at the same place."""
    what, added = "new process to its first result", "of that, beyond the interpreter and NumPy"
    whole, more = Summary.of(firsts["hearth"]), Summary.of(_beyond(firsts, "hearth"))
    common = [
        Row("first", "of that, the interpreter and NumPy alone", "s", Summary.of(firsts["numpy"]), "lower"),
        Row("first", "new process to its end, beyond the same", "s", Summary.of(_beyond(ends, "hearth")), "lower"),
    ]
    if "cupy" not in firsts:
        return [Row("first", what, "s", whole, "lower"), Row("first", added, "s", more, "lower"), *common]
    theirs, theirs_more = Summary.of(firsts["cupy"]), Summary.of(_beyond(firsts, "cupy"))
    return [
        Row("first", what, "s", whole, "lower", "fresh CuPy process", theirs, 1 / 5, 1 / 10),
        Row("first", added, "s", more, "lower", "what CuPy adds to them", theirs_more, 1 / 5, 1 / 10),
        Row("first", what, "s", whole, "lower", "fresh CuPy process, cache empty", Summary.of(firsts["compiling"])),
        *common,
    ]


def _beyond(samples: Samples, name: str) -> list[float]:
    """What a program took more than NumPy alone, turn by turn."""
    return [seconds - common for seconds, common in zip(samples[name], samples["numpy"], strict=True)]


def _once(context: Context, command: list[str], extra: Mapping[str, str]) -> tuple[float, float]:
    """Seconds to the first result, and to the end of the process; `extra`: of its environment."""
    environment = processes.environment(context.folder, extra)
    # As installed packages have it. A checkout has its bytecode only where Python may write it; where it may not, every
    # start would compile Hearth's client anew, and CuPy's not.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(context.folder / "bytecode")
    started = time.perf_counter()
    child = processes.Child(command, environment)
    try:
        said = child.line(lambda text: text.startswith("first "), 60)
        seconds = time.perf_counter() - started
        if said != _EXPECTED:
            raise processes.BenchError(f"wrong result: {said!r}, not {_EXPECTED!r}")
        child.process.wait(30)  # the session is closed before the next one is opened
        return seconds, time.perf_counter() - started
    finally:
        child.end()
