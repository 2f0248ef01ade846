"""From the start of a new process to its first result in hand: interpreter, imports, upload, cached kernel, read."""

from __future__ import annotations

import time
from pathlib import Path

from tests.bench import processes
from tests.bench.context import Context
from tests.bench.stats import Row, Summary

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
        programs["cupy"] = [str(_PROGRAMS / "first_cupy.py")]
    samples: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(context.pick(5, 7) + 1):
        for name, command in programs.items():
            seconds = _once(context, command)
            if turn:
                samples[name].append(seconds)
    what, ours = "new process to its first result", Summary.of(samples["hearth"])
    common = Row("first", "of that, the interpreter and NumPy alone", "s", Summary.of(samples["numpy"]), "lower")
    if not context.cuda:
        return [Row("first", what, "s", ours, "lower"), common]
    theirs = Summary.of(samples["cupy"])
    return [Row("first", what, "s", ours, "lower", "fresh CuPy process", theirs, 1 / 5, 1 / 10), common]


def _once(context: Context, command: list[str]) -> float:
    environment = processes.environment(context.folder)
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
        return seconds
    finally:
        child.end()
