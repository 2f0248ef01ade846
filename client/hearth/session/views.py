"""Views of the session engine's state, for tests and diagnostics.

Imported when one is asked for: a client's first result does without.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AttachmentView:
    """State of an attachment's sending thread."""

    sender_waits: bool
    """True while the thread sleeps and has to be called when there is work."""
    calls: int
    """Calls that the thread has not taken."""


@dataclass(frozen=True)
class LaneChannelView:
    """State of a lane's channel."""

    sender_waits: bool
    """True while the sending thread sleeps."""
    expects_request: bool
    """True if lone work is held back for a request that is expected to follow it."""
    done: int
    """Number of the last batch that the device has signalled as done, perhaps before its ack came."""


@dataclass(frozen=True)
class SessionView:
    """Bookkeeping of an attachment's protocol state."""

    unacked: int
    """Batches that were numbered and have not been acknowledged."""
    unacked_bytes: int
    """Bytes of those batches."""
    barriers: int
    """Requests under way whose success covers all that was added before them."""
