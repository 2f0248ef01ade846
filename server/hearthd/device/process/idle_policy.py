"""Event-loop idle policy: defers housekeeping while a latency-critical completion is expected, and polls for it.

See adaptive spinning; the durations are those of `hearthd.device.platform.spin_policy`.
"""

from __future__ import annotations

import time

from hearthd.device.outbox import Outbox
from hearthd.device.platform.event_loop import Loop
from hearthd.device.process.executor import Executor
from hearthd.device.streams.stream_pool import StreamPool

HASTY = 8
"""Limit of turns in a row that may defer housekeeping."""

NAP_S = 2e-5
"""Length of a sleep after a wait that did not end soon, in seconds."""

ROUND_S = 1e-3
"""Time for which the loop may serve one socket before it serves all others, in seconds, while it may sleep."""

LOOKS = 4
"""Polls of the device between two polls of the sockets, which take as long as one."""


class IdlePolicy:
    """Idle policy of the loop of one device process. Device-handle thread only."""

    def __init__(self, executor: Executor, tracks: StreamPool, outbox: Outbox, loop: Loop) -> None:
        self._executor = executor
        self._tracks = tracks
        self._outbox = outbox
        self._loop = loop
        self.round_s = ROUND_S
        """Time for which the loop may serve one socket before it serves all others, in seconds, while it may sleep."""
        self._turns = 0
        """Turns in a row that deferred housekeeping."""
        self._round_ends = 0.0
        """Time at which everything is to be served again."""
        self.expected_until = 0.0
        """Time until which the next request of a client that was answered in a nap is polled for, before anything else;
        else 0."""

    def begin(self) -> None:
        """Begins a turn."""
        self._executor.inline_path.answered = False
        self.expected_until = 0.0

    def goes_on(self) -> bool:
        """True if the rest of the turn is deferred: until the awaited completion, or until it is not expected soon."""
        executor = self._executor
        if self._turns < HASTY and not (executor.sharing.several or executor.more) and self._tracks.awaits:
            self._turns += 1
            return True
        self._turns = 0
        self._round_ends = time.perf_counter() + self.round_s
        return False

    def expects(self) -> bool:
        """True if a client that works step by step has just been answered: its next request is expected soon, and
        should not find this thread busy with housekeeping."""
        inline_path, sharing = self._executor.inline_path, self._executor.sharing
        answered, inline_path.answered = inline_path.answered, False
        if not answered:
            return False
        if sharing.active:
            sharing.settle(True)
        if not self._calm:
            return False
        self._loop.linger()
        return time.perf_counter() < self._round_ends

    @property
    def _calm(self) -> bool:
        """True if no work is under way, and none can run at once."""
        executor = self._executor
        return not (self._tracks.live or self._outbox.waits or executor.sharing.active or executor.more)

    def nap(self) -> bool | None:
        """Polls for completions, in place of a short sleep of the loop; see `Loop.on_nap`."""
        if self.expected_until:
            return None if time.perf_counter() < self.expected_until else True
        tracks = self._tracks
        if not tracks.news:
            if not tracks.awaits:
                return False
            looks = LOOKS
            while not tracks.news:
                looks -= 1
                if not looks:
                    return None
        for track in tuple(tracks.live):
            if track.pending:
                tracks.reap(track)  # answers go out before the next round; a `poll` finds the completion all the same
        self._outbox.answer()
        self._executor.sharing.settle(False)  # device time ends here, not at the next poll
        self._executor.kick(None)
        if self._loop.lingering is None or not self._calm:
            return True
        self.expected_until = time.perf_counter() + self._loop.expected_s  # the next request, as above
        return None
