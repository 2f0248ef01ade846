"""Times for which the threads of an attachment wait before they act without an event. Pure; seconds.

Covers times that differ in tests (`Connection.timing`), not limits of calls, which are those of the user or the module
that makes the call.
"""

from __future__ import annotations

from typing import NamedTuple


class Timing(NamedTuple):
    """The times of one attachment, and of its stream, lane and watchdog."""

    held: float = 0.25
    """Time that work waits for a lane, while the daemon finishes the commands it received before a break."""
    idle: float = 1.0
    """Time after which a sending thread checks by itself for work: the longest delay of a buffer's free after the one
    race that `Attachment` loses when it wakes that thread without the lock."""
    turn: float = 0.5e-3
    """Time for which sendable commands may lie in the queue before the submitting thread yields to others."""
    lane_turn: float = 50e-6
    """Time of the yield over a lane, where the submitting thread sends worthwhile batches itself: only the receiving
    thread needs a turn, to report completions."""
    soon: float = 0.2e-3
    """Lone work whose sender waits for something so soon after is better sent with that, in one message."""
    lane_again: float = 2.0
    """Time after which a stream whose lane did not come to life in time, as on a busy machine, is exchanged for another
    that may have one, once nothing is under way. Without that the session would stay on the slow path until it ends.
    Each further attempt in a row waits twice as long as the one before."""
    tick: float = 1e-3
    """Interval at which the background thread checks whether it is needed, once another thread has received."""
    slow_tick: float = 20e-3
    """That interval while a thread waits that has waited for a tick already, as in a series of large copies: a wake-up
    by each leaving thread would cost that thread a turn at the interpreter every time."""
    silence: float = 3.0
    """Time without a word from the daemon after which the watchdog asks it."""
    doubt: float = 1.0
    """Time after which the watchdog asks again where something seems to be lost: it may have been on its way."""


TIMING = Timing()
"""The times of every attachment, outside of tests."""
