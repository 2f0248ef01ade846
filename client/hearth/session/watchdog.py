"""Watchdog of one attachment: asks the daemon about overdue answers.

An answer may be late because its work takes long, and only the daemon knows that. If nothing arrives for a while though
answers are expected, the watchdog asks the daemon for its position (`AttachmentStatus`). If one side has sent a frame
that the other has not received, the client attaches again, after which the frame is sent again. So no thread waits
forever for a lost frame, and a wait for a long kernel costs the daemon only an occasional short call.

Covers when to ask and how to interpret the answer, not how the attachment is resumed (`hearth.session.execute_stream`).
`tick` is called by a thread that exists anyway; each call to the daemon runs in a separate thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from hearth.errors import HearthError, TimeoutError, UnsupportedError
from hearth.session.timing import TIMING, Timing

if TYPE_CHECKING:
    from typing import Protocol

    from hearth_proto.v1 import commands_pb2, device_pb2

    class ExecuteStreamLike(Protocol):
        """The Execute stream of an attachment: `hearth.session.execute_stream.ExecuteStream`."""

        resumed: int
        """Number of outages after which the stream was resumed."""

        def cancel(self) -> None:
            """Drops the stream; another one continues unless the attachment has ended."""

        def status(self) -> device_pb2.AttachmentStatusResponse:
            """Asks the daemon for its position in the attachment. Raises `HearthError`."""

        def put_into_effect(self, command: commands_pb2.Command) -> None:
            """Makes a queued Cancel command take effect immediately. Raises `HearthError`.

            Args:
                command: The command, with its request number.
            """


MAX_PAUSE_S = 30.0
"""Maximum pause, in seconds, between two calls. Each pause is twice the previous one."""


class ClientPosition(NamedTuple):
    """Position of an attachment as its client knows it. While it does not change, nothing arrives."""

    acked: int
    """Number of the last batch that the daemon has acknowledged."""
    sent: int
    """Number of the last batch that was sent."""
    responses: int
    """Number of results and events received."""
    lane: bool
    """True if the attachment uses a lane."""


def missing(client: ClientPosition, daemon: device_pb2.AttachmentStatusResponse) -> str:
    """Returns the reason why the attachment must be resumed, or an empty string if nothing is missing.

    Args:
        client: Position of the client.
        daemon: Position of the daemon.
    """
    if not daemon.known:
        return "the daemon has no stream for this attachment"
    if daemon.lane != client.lane:
        return (
            f"the daemon uses {'a lane' if daemon.lane else 'the stream'}, and this client uses "
            f"{'the stream' if daemon.lane else 'a lane'}"
        )
    if daemon.responses > client.responses:
        return f"the daemon has sent {daemon.responses} responses, but only {client.responses} have arrived"
    if daemon.HasField("last_seq") and daemon.last_seq < client.sent:
        return f"batch {client.sent} was sent, but batch {daemon.last_seq} is the last that the daemon received"
    return ""


class Watchdog:
    """Watchdog of one attachment.

    `read_position` returns the client's position, or None while no answer is expected. `ask` returns the daemon's
    position, and raises `HearthError`. `reconnect` resumes the attachment for the reason that it is passed.
    """

    def __init__(
        self,
        read_position: Callable[[], ClientPosition | None],
        ask: Callable[[], device_pb2.AttachmentStatusResponse],
        reconnect: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        timing: Timing = TIMING,
    ) -> None:
        self._timing = timing
        self._read_position = read_position
        self._ask = ask
        self._reconnect = reconnect
        self._clock = clock
        self._position: ClientPosition | None = None
        self._next_call = 0.0
        self._pause = timing.silence
        self._suspect: ClientPosition | None = None
        """Client's position at the last call in which something seemed to be lost; None: nothing did."""
        self._asking = self._over = False

    def tick(self) -> None:
        """Starts a call to the daemon if one is due. Called by one thread, about once a second; never blocks."""
        if self._asking or self._over:
            return
        position, now = self._read_position(), self._clock()
        if position is None or position != self._position:
            silence = self._timing.silence
            self._position, self._next_call, self._pause, self._suspect = position, now + silence, silence, None
        elif now >= self._next_call:
            self._asking = True
            with contextlib.suppress(RuntimeError):  # the interpreter ends
                threading.Thread(target=self._run, args=(position,), name="hearth-watchdog", daemon=True).start()

    def _run(self, position: ClientPosition) -> None:
        try:
            self.check(position)
        finally:
            self._asking = False

    def check(self, position: ClientPosition) -> None:
        """Asks the daemon for its position.

        Resumes the attachment if something is missing now and was missing at the previous call, at the same client
        position.

        Args:
            position: Position of the client.
        """
        reason = ""
        try:
            reason = missing(position, self._ask())
        except UnsupportedError:  # an older daemon
            self._over = True
        except TimeoutError:
            pass  # the daemon does not respond, and may respond again later
        except HearthError as error:
            reason = "" if error.broken else error.message  # a connection that broke ends the stream by itself
        if reason and self._suspect == position == self._read_position():
            self._reconnect(reason)
            reason = ""
        self._suspect = position if reason else None
        self._pause = min(MAX_PAUSE_S, 2 * self._pause)
        self._next_call = self._clock() + (self._timing.recheck if reason else self._pause)
