"""Event-loop idle policy: defers housekeeping while a latency-critical completion is expected, and polls for it.

See adaptive spinning; the durations are those of `hearthd.device.platform.spin_policy`.
"""

from __future__ import annotations

import time

from hearthd.device.outbox import Outbox
from hearthd.device.platform.event_loop import Loop
from hearthd.device.process.executor import Executor
from hearthd.device.streams.stream_pool import StreamPool

MAX_DEFERRED = 8
"""Most consecutive iterations of the loop that may defer housekeeping."""

NAP_S = 2e-5
"""Length of a sleep, in seconds, if an expected completion has not occurred soon."""

ROUND_S = 1e-3
"""Time, in seconds, for which the loop may serve a single socket before it serves all others."""

POLLS = 4
"""Number of polls of the device between two polls of the sockets; together they take about as long as one of the
latter."""


class IdlePolicy:
    """Idle policy of the loop of one device process. Device-handle thread only."""

    def __init__(self, executor: Executor, tracks: StreamPool, outbox: Outbox, loop: Loop) -> None:
        self._executor = executor
        self._tracks = tracks
        self._outbox = outbox
        self._loop = loop
        self.round_s = ROUND_S
        """Time for which the loop may serve one socket before it serves all others, in seconds, while it may sleep."""
        self._deferrals = 0
        """Number of consecutive iterations that deferred housekeeping."""
        self._round_ends = 0.0
        """Time at which all sockets and all housekeeping must be served again, in seconds."""
        self.expected_until = 0.0
        """Time, in seconds, until which only the next request of a client is polled for, because the client was
        answered in a nap; 0: no request is expected."""

    def begin(self) -> None:
        """Begins an iteration of the loop."""
        self._executor.sharing.answered = False
        self.expected_until = 0.0

    def defers_housekeeping(self) -> bool:
        """Returns True if the rest of the iteration is deferred, because an awaited completion is expected soon."""
        executor = self._executor
        if (
            self._deferrals < MAX_DEFERRED
            and not (executor.sharing.is_slicing or executor.more)
            and self._tracks.should_poll
        ):
            self._deferrals += 1
            return True
        self._deferrals = 0
        self._round_ends = time.perf_counter() + self.round_s
        return False

    def expects(self) -> bool:
        """Returns True if the next request of a client that works step by step is expected soon.

        Such a client has just been answered, and its next request should not have to wait for housekeeping.
        """
        sharing = self._executor.sharing
        answered, sharing.answered = sharing.answered, False
        if not answered:
            return False
        if not self._is_idle:
            sharing.settle(True)
            if not self._is_idle:
                return False
        self._loop.linger()
        return time.perf_counter() < self._round_ends

    @property
    def _is_idle(self) -> bool:
        """True if no work is under way, and none could run now."""
        executor = self._executor
        return not (self._tracks.live or self._outbox.waits or executor.sharing.active or executor.more)

    def nap(self) -> bool | None:
        """Polls for completions, in place of a short sleep of the loop; see `Loop.on_nap`."""
        if self.expected_until:
            return None if time.perf_counter() < self.expected_until else True
        tracks = self._tracks
        if not tracks.has_completions:
            if not tracks.should_poll:
                return False
            polls = POLLS
            while not tracks.has_completions:
                polls -= 1
                if not polls:
                    return None
        for track in tuple(tracks.live):
            if track.pending:
                # Runs the callbacks, so that answers go out now; a later `poll` still reports the completion.
                tracks.reap(track)
        self._outbox.answer()
        self._executor.sharing.settle(False)  # device time ends here instead of at the next poll
        self._executor.kick(None)
        if self._loop.lingering is None or not self._is_idle:
            return True
        self.expected_until = (
            time.perf_counter() + self._loop.expected_s
        )  # the next request is expected soon, as in `expects`
        return None
