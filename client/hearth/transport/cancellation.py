"""Aborted transfers, reported until the daemon has acknowledged the abort.

Otherwise a command that names such a transfer would wait for its bytes forever, and block all commands after it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from hearth.errors import HearthError
from hearth.transport.backoff import Backoff
from hearth_proto.later import device_pb2


class AbortReporter:
    """Reports aborts in a separate thread, which runs while there are aborts to report.

    `report` waits for the daemon's answer, and raises `HearthError`, with `broken` set if no answer arrived.
    """

    def __init__(self, report: Callable[[device_pb2.TransferStatusRequest], object]) -> None:
        self._report = report
        # reentrant: the garbage collector may drop a dispatch in a thread that holds the lock
        self._lock = threading.RLock()
        self._pending: deque[tuple[device_pb2.TransferStatusRequest, Backoff]] = deque()
        self._is_running = False

    def add(self, request: device_pb2.TransferStatusRequest, seconds: float) -> None:
        """Queues the abort of one transfer, to be reported. Does not block.

        Args:
            request: Names the transfer.
            seconds: Seconds for which the report is repeated: the time for which a session outlives its broken
                connection.
        """
        with self._lock:
            self._pending.append((request, Backoff(seconds)))
            if self._is_running:
                return
            self._is_running = True
        try:
            threading.Thread(target=self._run, name="hearth-give-up", daemon=True).start()
        except RuntimeError:  # the interpreter is shutting down, and the session ends with it
            self._is_running = False

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._pending:
                    self._is_running = False
                    return
                request, backoff = self._pending[0]
            pause = None
            try:
                self._report(request)
            except HearthError as error:
                pause = backoff.pause() if error.broken else None
            except ValueError:
                pass  # raised by gRPC for a channel that was closed meanwhile: all transfers of the session end
            if pause is None:
                self._pending.popleft()
            else:
                time.sleep(pause)
