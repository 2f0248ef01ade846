"""Reports of races in shared memory by kernels that were compiled for the race check (HEARTH_CPU_RACECHECK).

The runtime detects races (runtime/racecheck.h) and reports addresses in the module's code. The image's debug
information maps them to lines of the source, and its symbols give the names of static shared variables.
"""

from __future__ import annotations

import bisect
import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.compiler.elf import STT_TLS, ElfFile
from hearthd.device.cpu.images.dwarf import Frame, Lines

MARK = b"__tsan_init"
"""Bytes contained in the image of every module that is compiled for the race check, and in no other image."""

MAX_RACES = 16
"""Largest number of races that are reported for one launch."""

_MAX_REPORTS = 64
_VERBS = ("read", "wrote", "read atomically", "updated atomically")
_NOUNS = ("read", "write", "atomic read", "atomic update")
_WRITE = 1
_GUARD = ""
"""Name used for the guard of a variable, which records that the variable's (empty) constructor has run."""

_PLAIN_NAME = re.compile(r"\d+")


class _Report(ctypes.Structure):
    """runtime/racecheck.h's `Report`."""

    _fields_ = (
        ("block", ctypes.c_uint32 * 3),
        ("rank", ctypes.c_uint32 * 2),
        ("site", ctypes.c_uint32 * 2),
        ("kind", ctypes.c_uint32 * 2),
        ("is_static", ctypes.c_uint32),
        ("offset", ctypes.c_uint32),
        ("across", ctypes.c_uint32),
        ("count", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class Side:
    """An access that takes part in a race."""

    thread: tuple[int, int, int]
    kind: int
    location: str
    """File and line, as `kernel.cu(14)`."""

    def __str__(self) -> str:
        x, y, z = self.thread
        return f"thread ({x},{y},{z}) {_VERBS[self.kind]} at {self.location}"


@dataclass(frozen=True)
class Race:
    """Two unordered accesses to shared memory by threads of one block."""

    kernel: str
    block: tuple[int, int, int]
    first: Side
    second: Side
    memory: str
    """Name of the variable, or the offset in dynamic shared memory."""

    count: int
    """Number of pairs of accesses from the same two lines."""

    one_warp: bool
    """True if each of these pairs is of two lanes of one warp."""

    @property
    def fix(self) -> str:
        """Advice in the imperative: the barrier that is missing, or atomic accesses."""
        atomic = max(self.first.kind, self.second.kind) > _WRITE
        barrier = "__syncwarp()" if self.one_warp else "__syncthreads()"
        return f"add {barrier} between them" + (", or make both atomic" if atomic else "")

    @property
    def message(self) -> str:
        """Kernel, block, kind of race, variable, and both accesses, in one line."""
        x, y, z = self.block
        kinds = "/".join(_NOUNS[kind] for kind in sorted({self.first.kind, self.second.kind}))
        if self.first.kind == self.second.kind:
            kinds = f"{kinds}/{kinds}"
        return (
            f"kernel {self.kernel}, block ({x},{y},{z}): {kinds} race in shared memory ({self.memory}): "
            f"{self.first}, {self.second}"
        )

    def __str__(self) -> str:
        repeats = f" (seen {self.count} times)" if self.count > 1 else ""
        return f"hearth racecheck: {self.message}; {self.fix}{repeats}"


class RaceReports:
    """Reads the races of launches of one module."""

    def __init__(self, image: bytes, runtime: ctypes.CDLL) -> None:
        self._file = ElfFile(image)
        self._fetch_reports = runtime.hearth_race_reports
        self._fetch_reports.restype = ctypes.c_uint32
        self._fetch_reports.argtypes = [ctypes.c_void_p, ctypes.c_uint32]

    def pop_all(self, kernel: str, block: tuple[int, int, int]) -> list[Race]:
        """Returns the races of the calling thread's latest launch, one for each pair of source lines.

        That launch was of `kernel` with blocks of `block` threads.
        """
        reports = (_Report * _MAX_REPORTS)()
        races: dict[tuple[object, ...], Race] = {}
        for report in reports[: self._fetch_reports(reports, _MAX_REPORTS)]:
            sides = [
                Side(_thread_index(report.rank[i], block), report.kind[i], self._location(report.site[i]))
                for i in range(2)
            ]
            key = tuple(sorted((side.location, side.kind) for side in sides))
            x, y, z = report.block
            memory = self._variable_name(report)
            if not memory:
                continue
            race = Race(kernel, (x, y, z), sides[0], sides[1], memory, report.count, not report.across)
            if key in races:
                previous = races[key]
                one_warp = previous.one_warp and race.one_warp
                race = replace(previous, count=previous.count + race.count, one_warp=one_warp)
            races[key] = race
        return list(races.values())

    def _location(self, site: int) -> str:
        """Returns the user's source line that caused an access, skipping frames in the backend's own headers."""
        frames = self._lines.frames(site - 1)  # a call's return address may belong to the next line
        user_frame = next((frame for frame in frames if not _is_backend_header(frame)), None)
        frame = user_frame or (frames[0] if frames else Frame("?", 0))
        return f"{frame.file}({frame.line})"

    def _variable_name(self, report: _Report) -> str:
        """Returns the accessed variable; empty for memory that the compiler has added."""
        if not report.is_static:
            return f"dynamic shared memory + {report.offset} bytes"
        at = bisect.bisect_right(self._variables, (report.offset, "\U0010ffff", 0)) - 1
        if at >= 0:
            start, name, size = self._variables[at]
            if report.offset < start + size:
                if name == _GUARD:
                    return ""
                return f"{name} + {report.offset - start} bytes" if size > 8 or report.offset > start else name
        return f"static shared memory + {report.offset} bytes"

    @cached_property
    def _lines(self) -> Lines:
        return Lines({self._file.name(section): self._file.content(section) for section in self._file.sections})

    @cached_property
    def _variables(self) -> Sequence[tuple[int, str, int]]:
        """Thread-local variables as (offset, name, size in bytes), sorted."""
        return sorted(
            (symbol.value, plain_name(symbol.name.decode(errors="replace")), symbol.size)
            for symbol in self._file.symbols()
            if symbol.kind == STT_TLS and symbol.section
        )


def plain_name(symbol: str) -> str:
    """Returns the plain name of a variable from its mangled name: `s` from `_ZZ6reducePfE1s`."""
    if symbol.startswith("_ZGV"):
        return _GUARD
    if not symbol.startswith("_Z"):
        return symbol.split(".", maxsplit=1)[0]
    names: list[str] = []
    at = 2
    while match := _PLAIN_NAME.search(symbol, at):
        end = match.end() + int(match[0])
        if end <= len(symbol):
            names.append(symbol[match.end() : end])
            at = end
        else:
            at = match.end()
        if at < len(symbol) and symbol[at] == "_":  # a discriminator: there are several variables of this name
            break
    return names[-1] if names else symbol


def _thread_index(rank: int, block: tuple[int, int, int]) -> tuple[int, int, int]:
    return rank % block[0], rank // block[0] % block[1], rank // (block[0] * block[1])


def _is_backend_header(frame: Frame) -> bool:
    return frame.file.startswith(("/", "<"))


def text(races: Sequence[Race]) -> str:
    """Returns the text that a client sees among its kernel's output, one line for each race."""
    lines = [str(race) for race in races[:MAX_RACES]]
    if len(races) > MAX_RACES:
        lines.append(f"hearth racecheck: {len(races) - MAX_RACES} more races of this launch are not listed")
    return "".join(f"{line}\n" for line in lines)


def refusal(races: Sequence[Race]) -> Refusal:
    """Returns the error of a validated launch that had `races`."""
    first = races[0]
    others = f" (and {len(races) - 1} more)" if len(races) > 1 else ""
    return Refusal(
        Reason.DATA_RACE,
        f"{first.message}{others}",
        fix=first.fix,
        details={
            "kernel": first.kernel,
            "block": first.block,
            "memory": first.memory,
            "first_thread": first.first.thread,
            "first_line": first.first.location,
            "second_thread": first.second.thread,
            "second_line": first.second.location,
            "races": len(races),
        },
    )
