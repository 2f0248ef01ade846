"""Recorder of the device process, which the client's side controls through a shared file.

Imported by the forkserver of `tests.bench.profile.daemon`, before device processes are forked; they inherit the file's
mapping, because they may open no files.
"""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path
from typing import Any

from tests.bench.profile.recorder import Recorder
from tests.bench.profile.steps import DEVICE, OPERATIONS

VARIABLE = "BENCH_PROFILE"
"""Environment variable with the file, the operation and the backend, separated by colons."""

SIZE = 64 << 20
OFF, TIME, COUNT, REPORT = range(4)
"""Commands, the first byte of the file. A command takes effect when the device process receives the next batch."""
_LENGTH, _BODY = slice(8, 16), 16


class Control:
    """The shared file. Its mapping is shared by the parent and the children of a fork."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)

    @property
    def command(self) -> int:
        """The current command."""
        return self._map[0]

    @command.setter
    def command(self, value: int) -> None:
        self._map[0] = value

    def write(self, report: Any) -> None:
        """Writes the report of the device process. Raises ValueError if it is too large."""
        data = json.dumps(report).encode()
        self._map[_BODY : _BODY + len(data)] = data
        self._map[_LENGTH] = len(data).to_bytes(8, "little")

    def read(self) -> Any:
        """Returns the report of the device process."""
        size = int.from_bytes(self._map[_LENGTH], "little")
        return json.loads(self._map[_BODY : _BODY + size])


def create(path: Path) -> None:
    """Creates the file, sparse."""
    with path.open("wb") as file:
        file.truncate(SIZE)


def report_of(recorder: Recorder) -> dict[str, Any]:
    """Returns events, counts and the cost of an event, as JSON has them."""
    events, counts = list(recorder.events), [[*key, number] for key, number in recorder.counts.items()]
    return {"events": events, "counts": counts, "cost_us": recorder.cost_us()}


def install(path: Path, operation: str, backend: str) -> None:
    """Prepares the classes of this process, whose children become device processes."""
    from hearthd.device.platform.event_loop import Loop

    control, recorder, current = Control(path), Recorder(), OFF
    recorder.install(OPERATIONS[operation].probes(DEVICE), backend)
    serve = Loop._serve

    def controlled_serve(loop: Loop, ready: list[tuple[int, int]]) -> int:
        nonlocal current
        command = control.command
        if command != current:
            current = command
            recorder.end()
            if command == TIME:
                recorder.begin()
            elif command == COUNT:
                recorder.begin_counting()
            elif command == REPORT:
                control.write(report_of(recorder))
        return serve(loop, ready)

    recorder.exclude(controlled_serve)
    setattr(Loop, "_serve", controlled_serve)  # noqa: B010


if VARIABLE in os.environ:
    _path, _operation, _backend = os.environ[VARIABLE].rsplit(":", 2)
    install(Path(_path), _operation, _backend)
