"""Watch over the broker of a device process: counts losses, and ends a process that can no longer get a broker.

The keeper replaces a broker that ends. If the keeper itself has ended, a confined process can start neither of them: it
runs code that is already compiled, and compiles nothing more. The process ends as soon as it is unused, and the front
starts another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from hearthd.device.broker.client import Broker
from hearthd.device.platform.log import ProcessLog
from hearthd.device.platform.telemetry import Telemetry

CHECK_S = 0.5
"""Seconds between two checks whether the process is unused."""

REASON = "its broker and the keeper of the broker have ended, and nothing more can be compiled in it"


class BrokerWatch:
    """Watches the broker of one device process.

    Args:
      broker: the client of the broker.
      telemetry: counts the losses.
      journal: the log of the process.
      post: runs a function on the device-handle thread; called on any thread.
      unused: returns True if the process has no session, and no buffer that outlived one. Device-handle thread.
      end: ends the process; its argument is the reason for the front. Device-handle thread.
    """

    def __init__(
        self,
        broker: Broker,
        telemetry: Telemetry,
        journal: ProcessLog,
        post: Callable[[Callable[[], None]], None],
        unused: Callable[[], bool],
        end: Callable[[str], None],
    ) -> None:
        self._telemetry = telemetry
        self._journal = journal
        self._post = post
        self._unused = unused
        self._end = end
        self._stop = threading.Event()
        broker.on_loss = self._lost

    def close(self) -> None:
        """Ends the watch, because the process ends in an orderly way, and its broker with it."""
        self._stop.set()

    def _lost(self, *, replaced: bool) -> None:
        """Called when a broker has ended, on the thread that reads from the broker."""
        if self._stop.is_set():
            return
        self._post(self._count)
        if not replaced:
            self._journal.warning("keeper_lost", action="the device process is replaced once no session is left in it")
            threading.Thread(target=self._wait, name="keeper-lost", daemon=True).start()

    def _count(self) -> None:
        self._telemetry.brokers_lost += 1

    def _wait(self) -> None:
        while not self._stop.wait(CHECK_S):
            self._post(self._end_if_unused)

    def _end_if_unused(self) -> None:
        if self._unused() and not self._stop.is_set():
            self._end(REASON)
