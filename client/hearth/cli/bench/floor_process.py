"""The server process of the floors: started together with the connection to the daemon, ended with the command."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
import threading
from typing import Literal, NamedTuple

from hearth.cli.bench import floor_server
from hearth.errors import HearthError

Kind = Literal["unix", "tcp"]
_START_S = 30.0


class Addresses(NamedTuple):
    """Addresses and event loop of the process."""

    grpc: str
    raw: str
    """Name of an abstract Unix socket, or a port number."""
    loop: str
    """Event loop: ``"uvloop"`` or ``"asyncio"``."""


class FloorError(HearthError):
    """Raised if a floor of this machine cannot be measured."""


class FloorProcess:
    """The server process, started on creation; `addresses` blocks until it is ready."""

    def __init__(self, kind: Kind) -> None:
        self.kind: Kind = kind
        try:
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
            # In a separate session: a terminal's Ctrl-C reaches only the command, which then ends this process. -P:
            # modules of the current folder are not imported.
            self.process = subprocess.Popen(
                [sys.executable, "-P", floor_server.__file__, kind],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise _not_started(error.strerror or str(error)) from None

    @functools.cached_property
    def addresses(self) -> Addresses:
        """Addresses of the process. Blocks until it is ready. Raises `FloorError` if it does not start."""
        timer = threading.Timer(_START_S, self.process.kill)
        timer.start()
        try:
            assert self.process.stdout is not None
            fields = self.process.stdout.readline().split()
        finally:
            timer.cancel()
        if len(fields) != len(Addresses._fields):
            self.process.kill()
            self.process.wait()
            self._log.seek(0)
            last_line = self._log.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise _not_started(last_line or "it printed no addresses")
        return Addresses(*fields)

    def close(self) -> None:
        """Kills the process and waits for its end."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._log):
            if pipe is not None:
                pipe.close()


def _not_started(reason: str) -> FloorError:
    return FloorError(f"the process that measures this machine's floors did not start: {reason}")
