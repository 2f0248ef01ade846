"""A source that takes minutes to compile, and the processes that compile it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.support.daemon.harness import BACKEND

SLOW = """
    DEVICE constexpr unsigned turns(unsigned n) {
        unsigned s = 0;
        for (int i = 0; i < 400; ++i) for (int j = 0; j < STEPS; ++j) s += i ^ j ^ n;
        return s;
    }
    template <int N> struct F { static constexpr unsigned v = turns(N) + F<N - 1>::v; };
    template <> struct F<0> { static constexpr unsigned v = 1; };
    extern "C" __global__ void f(int* x) { *x = F<DEEP>::v; }
    """


for name, values in {"DEVICE": ("", "__device__"), "STEPS": ("4000", "500"), "DEEP": ("500", "190")}.items():
    SLOW = SLOW.replace(name, values[BACKEND != "cpu"])  # NVRTC has stricter limits on steps and depth
"""A source whose compile takes longer than every time limit of the tests: many constants of many steps each."""


def processes(parent: int) -> dict[int, str]:
    """Returns the descendants of a process: pid -> name of its program."""
    table: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                name, _, fields = (entry / "stat").read_text().partition("(")[2].rpartition(")")
                state, parent_pid = fields.split()[:2]
                if state != "Z":
                    table[int(entry.name)] = int(parent_pid), name
    descendants: dict[int, str] = {}
    while more := {
        pid: name
        for pid, (parent_pid, name) in table.items()
        if parent_pid in (parent, *descendants) and pid not in descendants
    }:
        descendants.update(more)
    return descendants
