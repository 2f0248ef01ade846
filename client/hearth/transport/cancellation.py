"""Aborted transfers, kept until the daemon has acknowledged the abort: a command that names one would otherwise wait
for its bytes for ever, and block all commands behind it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from hearth.errors import HearthError
from hearth.transport.backoff import Backoff
from hearth_proto.later import device_pb2


class GivingUp:
    """Reports aborts in a separate thread, which exists while there are any to report. `tell` waits for the daemon's
    answer, and raises `HearthError`, broken where none came."""

    def __init__(self, tell: Callable[[device_pb2.TransferStatusRequest], object]) -> None:
        self._tell = tell
        self._lock = threading.RLock()  # the garbage collector may drop a dispatch in a thread that has it
        self._left: deque[tuple[device_pb2.TransferStatusRequest, Backoff]] = deque()
        self._telling = False

    def add(self, request: device_pb2.TransferStatusRequest, seconds: float) -> None:
        """Adds one transfer, whose abort is reported for up to `seconds`: the time a session outlives its broken
        connection."""
        with self._lock:
            self._left.append((request, Backoff(seconds)))
            if self._telling:
                return
            self._telling = True
        try:
            threading.Thread(target=self._run, name="hearth-give-up", daemon=True).start()
        except RuntimeError:  # the interpreter ends: so does the session
            self._telling = False

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._left:
                    self._telling = False
                    return
                request, patience = self._left[0]
            pause = None
            try:
                self._tell(request)
            except HearthError as error:
                pause = patience.pause() if error.broken else None
            except ValueError:
                pass  # gRPC's, of a channel that was closed meanwhile: everything of the session is given up
            if pause is None:
                self._left.popleft()
            else:
                time.sleep(pause)
