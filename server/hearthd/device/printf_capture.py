"""Printf capture: reads kernel output from standard output and sends it to the session whose kernel printed it.

Standard output is shared by the whole process. Text is attributed to a session only if no other session has launched a
printing kernel since the last complete collection. Other text is written to the log, with the sessions that may have
printed it. Output is collected before an answer to a session whose printing kernels have ended, so that it arrives
before the sync that waits for the kernel returns. Sessions without printing kernels have no cost.

A separate thread empties the pipe that is standard output: CUDA's driver writes to the pipe inside calls of the
device-handle thread, and would block there if the pipe were full.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
from collections.abc import Callable

from hearth_proto.frames import Kind
from hearth_proto.reasons import Refusal
from hearth_proto.v1 import device_pb2
from hearthd.device.flows.segment import SessionRef
from hearthd.device.outbox import Outbox
from hearthd.device.platform.log import ProcessLog
from hearthd.device.platform.telemetry import Telemetry
from hearthd.device.streams.stream_pool import PooledStream, StreamPool

MAX_UNSENT_BYTES = 1 << 20
"""Limit of the text that is buffered between two collections, in bytes: as much as CUDA's own buffer holds by default.
Text beyond this limit is dropped and counted."""

LOGGED_BYTES = 16 << 10
"""Most output in one log line, in bytes."""

PIPE_BYTES = 1 << 20
STDOUT = 1

_PRINTERS = (b"vprintf", b"printf\0", b"puts\0", b"putchar\0", b"printf_chk\0", b"fwrite\0", b"__tsan_init")
"""Symbols that printing code refers to: PTX and CUBIN refer to `vprintf`, a shared object to the compiler's
substitutes. The last symbol marks kernels that are checked for races; the races are reported in the output."""

_FATBIN = b"\x50\xed\x55\xba"
"""Magic number of a fatbin. Its code may be compressed, so its symbols cannot be searched."""


def may_print(code: bytes) -> bool:
    """True if kernels of this code may print. A false positive costs the session a little time at every answer."""
    return code.startswith(_FATBIN) or any(name in code for name in _PRINTERS)


class PrintfCapture:
    """Captures kernel output. Device-handle thread only, except for the thread that empties the pipe."""

    def __init__(
        self,
        flush: Callable[[], None],
        tracks: StreamPool,
        outbox: Outbox,
        telemetry: Telemetry,
        journal: ProcessLog,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._flush = flush
        self._tracks = tracks
        self._outbox = outbox
        self._telemetry = telemetry
        self._journal = journal
        self._post = post
        self.suspects: dict[tuple[int, int], int] = {}
        """(channel, track) of each printing kernel whose output has not been collected -> position of the last such
        kernel on the track."""
        self._sessions: dict[int, str] = {}
        self._lock = threading.Lock()
        self._unsent = bytearray()
        self._dropped = 0
        self._scheduled = False
        self._pipe = -1

    def capture(self) -> None:
        """Replaces standard output by a pipe, for the rest of the life of the process."""
        self._pipe, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._pipe, False)
        # The size exceeds the limit of an unprivileged user: the pipe keeps its default size.
        with contextlib.suppress(OSError):
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.dup2(write_end, STDOUT, inheritable=False)
        os.close(write_end)
        threading.Thread(target=self._drain, name="output", daemon=True).start()

    # ---- sessions that print ----

    def launched(self, session: SessionRef, track: PooledStream) -> None:
        """Records that the session launched a kernel that may print on the track."""
        self.suspects[session.channel, track.index] = self._tracks.ordering.position(track.index)
        self._sessions[session.channel] = session.id

    def settle(self, channel: int) -> None:
        """Sends the output of the session's completed kernels, before the session is answered."""
        ended = self._ended()
        if any(suspect == channel for suspect, _ in ended):
            self._collect(ended)

    def close(self, channel: int) -> None:
        """Collects the remaining output of a session that has ended and whose work is done."""
        remaining = [suspect for suspect in self.suspects if suspect[0] == channel]
        if remaining:
            self._collect([*self._ended(), *remaining])

    def _ended(self) -> list[tuple[int, int]]:
        tracks = self._tracks.all
        return [suspect for suspect, position in self.suspects.items() if tracks[suspect[1]].done_position >= position]

    def _collect(self, ended: list[tuple[int, int]]) -> None:
        try:
            self._flush()
        except Refusal as refusal:  # the output is read after the next flush; the session's answer is still sent
            self._journal.warning("kernel_output_not_flushed", why=refusal.message)
        self.send()
        for suspect in ended:
            self.suspects.pop(suspect, None)
        channels = {channel for channel, _ in self.suspects}
        self._sessions = {channel: name for channel, name in self._sessions.items() if channel in channels}

    # ---- delivery ----

    def send(self) -> None:
        """Sends the output that has arrived to the session that printed it, or writes it to the log."""
        data, dropped = self._take()
        if not data and not dropped:
            return
        text = data.decode(errors="replace")
        channels = {channel for channel, _ in self.suspects}
        self._telemetry.output_dropped_bytes += dropped
        if len(channels) != 1:
            self._telemetry.output_unattributed_bytes += len(data)
            sessions = sorted(self._sessions[channel] for channel in channels)
            self._journal.info("kernel_output", sessions=sessions, text=text[:LOGGED_BYTES], bytes=len(data) + dropped)
            return
        if dropped:
            limit = MAX_UNSENT_BYTES
            text += f"\n[{dropped} more bytes of output were dropped: {limit} is the maximum between two syncs]\n"
        self._telemetry.output_bytes += len(data)
        event = device_pb2.Event(output=device_pb2.Output(text=text))
        response = device_pb2.ExecuteResponse(event=event)
        self._outbox.put(Kind.RESPONSE, response.SerializeToString(), channel=channels.pop())

    def _log_unattributed(self) -> None:
        """Handles text that has arrived. Without a session that may have printed it, the text is logged now."""
        self._scheduled = False
        if not self.suspects:
            self.send()

    # ---- the pipe ----

    def _take(self) -> tuple[bytes, int]:
        """Returns all output read so far, and the number of bytes that were dropped."""
        with self._lock:
            while self._read():
                pass
            data, dropped = bytes(self._unsent), self._dropped
            self._unsent.clear()
            self._dropped = 0
        return data, dropped

    def _read(self) -> bool:
        """Reads once; the caller holds the lock. Returns True if there was any data."""
        if self._pipe < 0:
            return False  # nothing is captured, because this process does not own standard output
        try:
            data = os.read(self._pipe, PIPE_BYTES)
        except BlockingIOError:
            return False
        room = MAX_UNSENT_BYTES - len(self._unsent)
        self._unsent += data[:room]
        self._dropped += max(0, len(data) - room)
        return bool(data)

    def _drain(self) -> None:
        """Empties the pipe, on a separate thread, so that the pipe has room again within a short time."""
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        while True:
            poll.poll()
            with self._lock:
                has_data = self._read()
            if has_data and not self.suspects and not self._scheduled:
                self._scheduled = True  # a race with the other thread costs one more read, and never loses text
                self._post(self._log_unattributed)
