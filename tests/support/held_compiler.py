"""A C++ compiler, with the CPU backend's libraries for groups, that waits until the test lets it continue."""

from __future__ import annotations

import os
import select
import shlex
from collections.abc import Sequence
from pathlib import Path

_SCRIPT = """#!/bin/sh
case "$*" in *exchange.so*|*reduce-*)
    case "$*" in {broken}) echo "it does not compile" >&2; exit 1;; esac
    echo x > {begun}
    read line < {go};;
esac
exec {compiler} "$@"
"""


class HeldCompiler:
    """A wrapper of `compiler`. It fails for command lines that contain the word `broken`."""

    def __init__(self, folder: Path, compiler: Sequence[str], broken: str = "") -> None:
        self.path = folder / "compiler"
        self._fifos = [folder / "begun", folder / "go"]
        for fifo in self._fifos:
            os.mkfifo(fifo)
        # Opened for reading and writing, so that no end waits for the other to be opened, and no read returns an end of
        # file.
        self._begun, self._go = (os.open(fifo, os.O_RDWR) for fifo in self._fifos)
        begun_path, go_path = (shlex.quote(str(fifo)) for fifo in self._fifos)
        pattern = f"*{shlex.quote(broken)}*" if broken else "''"
        self.path.write_text(
            _SCRIPT.format(broken=pattern, begun=begun_path, go=go_path, compiler=shlex.join(compiler))
        )
        self.path.chmod(0o755)

    def begun(self, runs: int, seconds: float = 30) -> None:
        """Returns when `runs` more runs have started."""
        for _ in range(runs):
            assert select.select([self._begun], [], [], seconds)[0], "the compiler was not started"
            assert os.read(self._begun, 2) == b"x\n"

    def quiet(self, seconds: float = 0.3) -> bool:
        """Returns whether no other run starts within `seconds`."""
        return not select.select([self._begun], [], [], seconds)[0]

    def go_on(self, runs: int) -> None:
        os.write(self._go, b"go\n" * runs)

    def close(self) -> None:
        """Releases all runs, present and future."""
        for fifo in self._fifos:
            plain = fifo.with_suffix(".plain")
            plain.write_text("go\n")
            plain.rename(fifo)
        self.go_on(64)  # for runs that have already opened the FIFO
        os.close(self._begun)
        os.close(self._go)
