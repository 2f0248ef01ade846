"""A program that runs with HEARTH_TRACE set, and the traces that its processes write."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from hearth.cli.format.complaint import complain, invalid_argument

_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)
_AFTER_SIGNAL = 128


def run_traced(program: Sequence[str]) -> tuple[int, list[dict[str, Any]]]:
    """Runs the program to its end.

    Returns its exit status, as a shell reports it, and the traces of its processes. Raises `ArgumentError` if the
    program cannot be started.
    """
    folder = Path(tempfile.mkdtemp(prefix="hearth-trace-"))
    try:
        status = _run(program, {**os.environ, "HEARTH_TRACE": str(folder / "%p.json")})
        return status, [
            document for document in map(_load_document, sorted(folder.glob("*.json"))) if document is not None
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(program: Sequence[str], environment: dict[str, str]) -> int:
    try:
        process = subprocess.Popen(program, env=environment)
    except (OSError, ValueError) as error:
        raise invalid_argument(
            f"{program[0]!r} cannot be run: {getattr(error, 'strerror', None) or error}",
            "write the program and its arguments after --, e.g. hearth trace record -- python my_program.py",
        ) from None

    def pass_on(number: int, _frame: FrameType | None) -> None:
        process.send_signal(number)

    # The terminal sends Ctrl-C to the program too; its trace until then is kept.
    previous_handlers = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    previous_handlers[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        status = process.wait()
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
    return _AFTER_SIGNAL - status if status < 0 else status


def _load_document(path: Path) -> dict[str, Any] | None:
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
        return document
    except (OSError, ValueError) as error:
        complain(f"the trace of process {path.stem} cannot be read: {error}")
        return None
