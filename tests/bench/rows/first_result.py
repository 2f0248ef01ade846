"""Time from the start of a new process to its first result: interpreter, imports, upload, cached kernel, read.

Three rows have bounds. The first two measure the whole process, as a user waits for it: one whose job needs only
Python's own numbers and buffers on the host, for which Hearth's client does not import NumPy, and one with NumPy's
arrays. CuPy's process imports NumPy in both cases. On some machines the import of NumPy takes longer than the bound
allows, so that no client with NumPy's arrays could meet it: the third row measures what each side adds to the
interpreter and NumPy, that is, the difference to NumPy alone in the same turn; its bounds are on the ratio of these
differences.

Two rows have no bounds. They compare with a process that must compile its kernel, as the first process in a new
container or CI job does (a node of Hearth compiles the kernel once for all clients), and with a process that has the
machine to itself, without a daemon: an unused driver may need to wake the device first. The last row
measures what Hearth adds until the process has ended, with its session closed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench import fresh, processes
from tests.bench.context import Context
from tests.bench.stats import Row, Samples, Summary

_PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
_CUPY = [str(_PROGRAMS / "first_cupy.py")]
_EXPECTED = f"first {2.0 * ((1 << 16) - 1)}"


def alone(folder: Path, turns: int) -> list[float]:
    """Returns the seconds to the first result of CuPy's processes, before the daemon is started; the first of them
    fills the caches and is not counted. Returns an empty list if CuPy or a device is missing, which the parent cannot
    know because it never loads CUDA."""
    found: list[float] = []
    for turn in range(turns + 1):
        try:
            seconds, _ = _once(folder, _CUPY, {})
        except processes.BenchError:
            if turn:
                raise
            return []
        if turn:
            found.append(seconds)
    return found


def measure(context: Context) -> list[Row]:
    """Measures Hearth, CuPy and their common part alternately; the first process of each fills the compile caches and
    the page cache, and is not counted."""
    programs = {
        "hearth": [str(_PROGRAMS / "first_hearth.py"), context.daemon.unix],
        "plain": [str(_PROGRAMS / "first_plain.py"), context.daemon.unix],
        "numpy": [str(_PROGRAMS / "first_numpy.py")],
    }
    if context.cuda:
        programs["cupy"] = programs["compiling"] = _CUPY
    firsts: dict[str, list[float]] = {name: [] for name in programs}
    ends: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(context.pick(5, 15) + 1):
        for name, command in programs.items():
            with tempfile.TemporaryDirectory(dir=context.folder) as empty:
                extra = {"CUPY_CACHE_DIR": empty} if name == "compiling" else {}
                first, end = _once(context.folder, command, extra)
            if turn:
                firsts[name].append(first)
                ends[name].append(end)
    return rows(firsts, ends, context.cupy_alone if context.cuda else [])


def rows(firsts: Samples, ends: Samples, before: Sequence[float] = ()) -> list[Row]:
    """Builds the rows from the seconds to the first result and to the end of the process, by program; values of the
    same turn have the same index. `before` is the result of `alone`."""
    quickest, what = "new process to its first result, without NumPy", "the same with NumPy's arrays"
    added = "of that, beyond the interpreter and NumPy"
    plain, whole, more = (Summary.of(each) for each in (firsts["plain"], firsts["hearth"], _beyond(firsts, "hearth")))
    common = [
        Row("first", "of that, the interpreter and NumPy alone", "s", Summary.of(firsts["numpy"]), "lower"),
        Row("first", "new process to its end, beyond the same", "s", Summary.of(_beyond(ends, "hearth")), "lower"),
    ]
    if "cupy" not in firsts:
        pairs = ((quickest, plain), (what, whole), (added, more))
        return [*(Row("first", name, "s", seconds, "lower") for name, seconds in pairs), *common]
    theirs, theirs_more = Summary.of(firsts["cupy"]), Summary.of(_beyond(firsts, "cupy"))
    if before:
        without = "fresh CuPy process, no daemon on the machine"
        common.insert(0, Row("first", what, "s", whole, "lower", without, Summary.of(before)))
    return [
        Row("first", quickest, "s", plain, "lower", "fresh CuPy process", theirs, 1 / 5, 1 / 10),
        Row("first", what, "s", whole, "lower", "fresh CuPy process", theirs, 1 / 5, 1 / 10),
        Row("first", added, "s", more, "lower", "what CuPy adds to them", theirs_more, 1 / 5, 1 / 10),
        Row("first", what, "s", whole, "lower", "fresh CuPy process, cache empty", Summary.of(firsts["compiling"])),
        *common,
    ]


def _beyond(samples: Samples, name: str) -> list[float]:
    """Returns the seconds that a program took longer than NumPy alone, for each turn."""
    return [seconds - common for seconds, common in zip(samples[name], samples["numpy"], strict=True)]


def _once(folder: Path, command: list[str], extra: Mapping[str, str]) -> tuple[float, float]:
    """Returns the seconds to the first result, and to the end of the process; `extra` holds variables of its
    environment."""
    environment = processes.environment(folder, extra)
    # As for installed packages: a checkout has bytecode only if Python may write it; otherwise every start would
    # compile Hearth's client again, but not CuPy.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    environment["PYTHONPATH"] = fresh.python_path()
    python = fresh.interpreter(folder)
    started = time.perf_counter()
    child = processes.Child(command, environment, python)
    try:
        said = child.line(lambda text: text.startswith("first "), 60)
        seconds = time.perf_counter() - started
        if said != _EXPECTED:
            raise processes.BenchError(f"wrong result: {said!r}, not {_EXPECTED!r}")
        child.process.wait(30)  # waits until the session is closed, before the next one is opened
        return seconds, time.perf_counter() - started
    finally:
        child.end()
