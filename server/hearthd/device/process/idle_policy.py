"""Event-loop idle policy: defers housekeeping while a latency-critical completion is expected, and polls for it.

See adaptive spinning; the durations are those of `hearthd.device.platform.spin_policy`.
"""

from __future__ import annotations

import time

from hearthd.device.outbox import Outbox
from hearthd.device.platform.event_loop import EXPECTED_S, Loop
from hearthd.device.process.executor import Executor
from hearthd.device.streams.stream_pool import StreamPool

HASTY = 8
"""Turns in a row that may leave undone what nobody waits for."""

NAP_S = 2e-5
"""How long to sleep where what was awaited has not come soon."""

ROUND_S = 1e-3
"""How long the loop may look after one socket before it looks after all else, as long as it may sleep."""

LOOKS = 4
"""So often the device is asked before the sockets are looked at, which takes as long as to ask it."""


class IdlePolicy:
    """Idle policy of the loop of one device process. Device-handle thread only."""

    def __init__(self, executor: Executor, tracks: StreamPool, outbox: Outbox, loop: Loop) -> None:
        self._executor = executor
        self._tracks = tracks
        self._outbox = outbox
        self._loop = loop
        self._turns = 0
        """Turns in a row that left things undone."""
        self._round_ends = 0.0
        """When all is to be looked after again."""
        self.expected_until = 0.0
        """How long the next step of who was answered in a nap is looked for before anything else is done; else 0."""

    def begin(self) -> None:
        """A turn begins."""
        self._executor.inline_path.answered = False
        self.expected_until = 0.0

    def goes_on(self) -> bool:
        """Whether the rest of the turn is left undone: until what is awaited has come, or does not come soon."""
        executor = self._executor
        if self._turns < HASTY and not (executor.sharing.several or executor.more) and self._tracks.awaits:
            self._turns += 1
            return True
        self._turns = 0
        self._round_ends = time.perf_counter() + ROUND_S
        return False

    def expects(self) -> bool:
        """Whether somebody who works step by step has just been answered: the next step comes soon, and is not to find
        this thread busy with what nobody waits for."""
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
        """Whether nothing is under way, and nothing is to be done at once."""
        executor = self._executor
        return not (self._tracks.live or self._outbox.waits or executor.sharing.active or executor.more)

    def nap(self) -> bool | None:
        """Instead of a short sleep of the loop; see `Loop.on_nap`."""
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
                tracks.reap(track)  # who waits hears of it before the loop goes round; a `poll` finds it all the same
        self._outbox.answer()
        self._executor.sharing.settle(False)  # device time ends here, whatever the sockets bring before that poll
        self._executor.kick(None)
        if self._loop.lingering is None or not self._calm:
            return True
        self.expected_until = time.perf_counter() + EXPECTED_S  # the next step, as above
        return None
