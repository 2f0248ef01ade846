"""Times for which the threads of an attachment wait before they act without an event. Pure; seconds.

Covers the times that tests change (`Connection.timing`), not the timeouts of calls, which belong to the user or to the
module that makes the call.
"""

from __future__ import annotations


class Timing:
    """The times of one attachment, and of its stream, lane and watchdog.

    A plain class, because every client creates it before its first result: a named tuple of ten fields takes 0.4 ms.
    """

    def __init__(
        self,
        *,
        lane_hold: float = 0.25,
        idle: float = 1.0,
        yield_interval: float = 0.5e-3,
        lane_yield: float = 50e-6,
        request_window: float = 0.2e-3,
        lane_retry: float = 2.0,
        tick: float = 1e-3,
        slow_tick: float = 20e-3,
        silence: float = 3.0,
        recheck: float = 1.0,
    ) -> None:
        self.lane_hold = lane_hold
        """Maximum time for which work is held back for a lane, while the daemon finishes the commands that it received
        before."""
        self.idle = idle
        """Time after which a sending thread checks for work without a wake-up: the maximum delay of a buffer's free if
        a Ctrl-C interrupted `Attachment._handle_freed` before it had woken the sender."""
        self.yield_interval = yield_interval
        """Time for which sendable commands may stay in the queue before the submitting thread yields to other
        threads."""
        self.lane_yield = lane_yield
        """Duration of that yield over a lane. There the submitting thread itself sends sufficiently large batches, and
        only the receiving thread needs the interpreter, to report completions."""
        self.request_window = request_window
        """Time within which the request that follows a lone command is better sent with that command, in one
        message."""
        self.lane_retry = lane_retry
        """Time after which a stream whose lane did not go live in time, as on a busy machine, is replaced by another
        that may get a lane, as soon as the attachment is idle. Otherwise the session would stay on the slow path until
        it ends. The delay doubles with each consecutive attempt."""
        self.tick = tick
        """Interval at which the background thread checks whether it is needed after another thread has received."""
        self.slow_tick = slow_tick
        """Interval of that check after the same waiting thread has received for a whole tick, as in a series of large
        copies. If such a thread woke the background thread on leaving, it would need to acquire the interpreter lock
        one additional time."""
        self.silence = silence
        """Time without a message from the daemon after which the watchdog asks it."""
        self.recheck = recheck
        """Time until the watchdog asks again if something seems to be lost: it may still have been in transit."""


TIMING = Timing()
"""The times of every attachment, outside of tests."""
