"""Pauses: at random times the front, a device process, the forkserver or a client is stopped for a while (SIGSTOP)."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable

from tests.support.daemon.harness import DaemonProcess, marked

EVERY_S = (5.0, 20.0)
"""Range of seconds from one pause to the next."""
LAST_S = (0.1, 0.5, 1.2, 2.0)
"""Lengths of the pauses in seconds: shorter than the soak's leases, so that no session may be lost."""


class Pauses:
    """A thread that pauses one process at a time, until `stop`; `clients` returns the pids of the clients."""

    def __init__(self, daemon: DaemonProcess, clients: Callable[[], list[int]], seed: int) -> None:
        self.count = 0
        self._daemon = daemon
        self._clients = clients
        self._rng = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pauses", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread; returns when all processes have been continued."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._rng.uniform(*EVERY_S)):
            of_daemon = self._rng.random() < 0.7
            pids = marked(self._daemon.mark) if of_daemon else self._clients()
            if not pids:
                continue
            pid = self._rng.choice(pids)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self.count += 1
                self._over.wait(self._rng.choice(LAST_S))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
