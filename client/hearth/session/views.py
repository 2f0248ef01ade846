"""Views of the session engine's state, for tests and diagnostics.

Imported only when a view is requested, so that a client's first result does not wait for this import.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AttachmentView:
    """State of an attachment's sending thread."""

    sender_waits: bool
    """True while the thread sleeps and must be woken when there is work."""
    calls: int
    """Number of wake-ups that the thread has not taken."""


@dataclass(frozen=True)
class LaneChannelView:
    """State of a lane channel."""

    sender_waits: bool
    """True while the sending thread sleeps."""
    expects_request: bool
    """True if a lone command is held back for a request that is expected to follow it."""
    done: int
    """Number of the last batch that the device has signalled as done, perhaps before its ack arrived."""


@dataclass(frozen=True)
class SessionView:
    """Counts of an attachment's protocol state."""

    unacked: int
    """Number of batches that were numbered and have not been acknowledged."""
    unacked_bytes: int
    """Total size of those batches, in bytes."""
    barriers: int
    """Number of requests in flight whose success covers everything added before them."""
