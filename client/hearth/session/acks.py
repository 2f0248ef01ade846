"""Receipts: counts the daemon's responses and decides when to acknowledge them.

The daemon keeps each response until the client acknowledges it, so that it can send the response again after a broken
stream.
"""

from __future__ import annotations

from collections import OrderedDict

from hearth.codec import encode

RESPONSES = 64
BYTES = 1 << 20
"""Number of responses, or of their bytes, after which a receipt is due."""
DOWNLOADED_BYTES = 4 << 20
"""Number of bytes of downloads after which a receipt is due."""
_MAX_DOWNLOADS = 256
"""Maximum number of downloads that are reported again after a break; older downloads have ended long before."""


class Receipts:
    """Counts of received responses and downloaded bytes of one attachment, and the receipts sent for them."""

    def __init__(self, interval: int = RESPONSES) -> None:
        """`interval`: number of responses after which a receipt is due."""
        self._interval = interval
        self.responses = 0
        """Number of results and events received."""
        self.responses_due = interval
        """Number of responses at which a receipt is due."""
        self._bytes = 0
        self._acknowledged = 0
        self._acknowledged_bytes = 0
        # transfer -> number of bytes of the download received so far
        self._downloaded: OrderedDict[int, int] = OrderedDict()
        self._unacknowledged: dict[int, int] = {}
        self._unacknowledged_bytes = 0
        self.due = False
        """True if a receipt should be sent now."""

    def count_response(self) -> None:
        """Counts one received result or event."""
        self.responses = count = self.responses + 1
        if count >= self.responses_due:
            self.due = True

    def add_size(self, size: int) -> None:
        """Adds the size of the response received last.

        Args:
            size: Size in bytes of the response's payload.
        """
        self._bytes += size
        if self._bytes - self._acknowledged_bytes >= BYTES:
            self.due = True

    def record_download(self, transfer: int, size: int) -> None:
        """Records that the first `size` bytes of the download `transfer` have been received.

        Args:
            transfer: Number of the transfer.
            size: Number of bytes received so far, from the beginning of the download.
        """
        self._unacknowledged_bytes += size - self._downloaded.get(transfer, 0)
        self._downloaded[transfer] = self._unacknowledged[transfer] = size
        self._downloaded.move_to_end(transfer)
        if len(self._downloaded) > _MAX_DOWNLOADS:
            self._downloaded.popitem(last=False)
        if self._unacknowledged_bytes >= DOWNLOADED_BYTES:
            self.due = True

    @property
    def unacknowledged(self) -> bool:
        """True if some received responses are not covered by a receipt yet."""
        return self.responses != self._acknowledged

    @property
    def has_unreported_downloads(self) -> bool:
        """True if downloads must be reported in a receipt that may wait until the sender is idle."""
        return bool(self._unacknowledged)

    def take_request(self) -> bytes:
        """Returns the serialized receipt and counts it as sent."""
        message = encode.received(self.responses, self._unacknowledged)
        self._unacknowledged.clear()
        self._unacknowledged_bytes = 0
        self._mark_sent()
        return message

    def record_attach(self) -> None:
        """Notes that an Attach has reported the responses.

        Downloads are reported again, because receipts for them may have been lost with the previous stream.
        """
        self._mark_sent()
        self._unacknowledged = dict(self._downloaded)
        self._unacknowledged_bytes = DOWNLOADED_BYTES if self._unacknowledged else 0
        self.due = bool(self._unacknowledged)

    def _mark_sent(self) -> None:
        self._acknowledged, self._acknowledged_bytes, self.due = self.responses, self._bytes, False
        self.responses_due = self._acknowledged + self._interval
