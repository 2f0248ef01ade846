"""Thread that reads and writes files in memory, one request after another, apart from the device-handle thread.

Filling a page for the first time takes longer than the device takes to deliver its bytes, so it is done on a separate
thread. `pwrite` is used instead of a mapping, because the system then reports refusals as errors instead of SIGBUS, and
because no kernel of the CPU backend can write to the file by mistake.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

Done = Callable[[OSError | None], None]
"""Called on the device-handle thread with the error, or None on success."""


class FileThread:
    """The thread that reads and writes files.

    Its methods must be called on the device-handle thread. The memory of a request belongs to the thread until `done`
    is called.
    """

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._post = post
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._started = False

    def write(self, file: int, data: memoryview, offset: int, done: Done) -> None:
        """Writes all of `data` to the file at `offset`, then calls `done`."""
        self._put(partial(self._run_request, done, _write, file, data, offset))

    def read(self, file: int, into: memoryview, offset: int, done: Done) -> None:
        """Fills `into` from the file at `offset`, then calls `done`; with an OSError if the file ends earlier."""
        self._put(partial(self._run_request, done, _read, file, into, offset))

    def close(self, file: int) -> None:
        """Closes the file after all earlier requests."""
        self._put(partial(os.close, file))

    def _run_request(
        self, done: Done, transfer: Callable[[int, memoryview, int], None], file: int, data: memoryview, offset: int
    ) -> None:
        try:
            transfer(file, data, offset)
        except OSError as error:
            self._post(partial(done, error))
        else:
            self._post(partial(done, None))

    def _put(self, work: Callable[[], None]) -> None:
        if not self._started:
            self._started = True
            threading.Thread(target=self._run, name="snapshot-files", daemon=True).start()
        self._work.put(work)

    def _run(self) -> None:
        while True:
            self._work.get()()


class SessionFiles:
    """The file of each session, by its channel.

    Files arrive over a separate socket, before or after the commands that need them.
    """

    def __init__(self, thread: FileThread, on_file: Callable[[], None]) -> None:
        self._thread = thread
        self._on_file = on_file
        self._files: dict[int, int] = {}
        self.get = self._files.get
        self._closed: deque[int] = deque(maxlen=1024)
        """Channels that were closed before their file arrived."""

    def received(self, body: dict[str, Any], files: list[int]) -> None:
        """Handles a message of the front that carries a session's file."""
        channel = int(body.get("channel", 0))
        session_file = None if channel in self._closed or channel in self._files or not files else files.pop()
        for file in files:
            os.close(file)
        if session_file is not None:
            self._files[channel] = session_file
            self._on_file()

    def close(self, channel: int) -> None:
        """Closes the file of a closed session, after the writes under way."""
        file = self._files.pop(channel, None)
        if file is not None:
            self._thread.close(file)
        else:
            self._closed.append(channel)


def _write(file: int, data: memoryview, offset: int) -> None:
    while data:
        done = os.pwrite(file, data, offset)
        data, offset = data[done:], offset + done


def _read(file: int, into: memoryview, offset: int) -> None:
    while into:
        done = os.preadv(file, [into], offset)
        if not done:
            raise OSError(f"the file ends at {offset}, {len(into)} bytes before the copy does")
        into, offset = into[done:], offset + done
