"""Watched events: callbacks for single events, whatever is submitted to their streams later.

Device-handle thread only.
"""

from __future__ import annotations

import time

from hearthd.device.backend.resources import Event
from hearthd.device.backend.server import ComputeServer
from hearthd.device.streams.pending_outcomes import Callback


class WatchedEvents:
    """Events with callbacks.

    The caller owns each event and may `retire` it at any time; the event is released when it is no longer watched.
    """

    def __init__(self, server: ComputeServer) -> None:
        self._server = server
        self.entries: list[tuple[Event, Callback, float, Callback]] = []
        """The watched events, each with its callback, its deadline, and the callback for the deadline."""
        self._hold_counts: dict[Event, int] = {}
        self._retired: set[Event] = set()

    def add(self, event: Event, callback: Callback, timeout: float | None, on_timeout: Callback | None) -> None:
        """Calls `callback` when the event is done.

        If it is not done after `timeout` seconds, calls `on_timeout` instead.
        """
        deadline = time.perf_counter() + timeout if timeout is not None else float("inf")
        self.hold(event)
        self.entries.append((event, callback, deadline, on_timeout or callback))

    def poll(self) -> int:
        """Runs the callbacks of events that are done or have timed out. Returns the number of events that were done."""
        done = self._server.done
        watched, self.entries = self.entries, []
        now, done_events = time.perf_counter(), 0
        for watch in watched:
            event, callback, deadline, on_timeout = watch
            if done(event):
                done_events += 1
                callback()
            elif now > deadline:
                on_timeout()
            else:
                self.entries.append(watch)
                continue
            self.drop(event)
        return done_events

    @property
    def any_done(self) -> bool:
        """True if a `poll` would find an event that is done. Cheap enough for a spin loop."""
        return bool(self.entries) and any(self._server.done(watch[0]) for watch in self.entries)

    @property
    def any_deadline(self) -> bool:
        """True if any watched event has a deadline."""
        return any(deadline != float("inf") for _, _, deadline, _ in self.entries)

    def hold(self, event: Event) -> None:
        """Prevents the release of the event; each call must be matched by one call of `drop`."""
        self._hold_counts[event] = self._hold_counts.get(event, 0) + 1

    def drop(self, event: Event) -> None:
        """Ends one `hold`. The last one releases the event if it was retired."""
        remaining = self._hold_counts[event] - 1
        if remaining:
            self._hold_counts[event] = remaining
            return
        del self._hold_counts[event]
        if event in self._retired:
            self._retired.discard(event)
            self._server.release_event(event)

    def retire(self, event: Event) -> None:
        """Releases an event as soon as it is no longer watched."""
        if event in self._hold_counts:
            self._retired.add(event)
        else:
            self._server.release_event(event)
