"""Transfers that were given up, until the daemon has heard of it: where nobody told it, the command that names one
would wait for its bytes for ever, and with it all that is behind."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from hearth.errors import HearthError
from hearth.transport.backoff import Backoff
from hearth_proto.later import device_pb2


class GivingUp:
    """Tells by a thread of its own, which is there while there is something to tell. `tell` waits for the daemon's
    answer, and raises `HearthError`, broken where none came."""

    def __init__(self, tell: Callable[[device_pb2.TransferStatusRequest], object]) -> None:
        self._tell = tell
        self._lock = threading.RLock()  # the garbage collector may drop a dispatch in a thread that has it
        self._left: deque[tuple[device_pb2.TransferStatusRequest, Backoff]] = deque()
        self._telling = False

    def add(self, request: device_pb2.TransferStatusRequest, seconds: float) -> None:
        """One more, which is told for so many seconds: as long as its session outlives a connection that broke."""
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
