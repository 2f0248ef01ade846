"""Receipts: counts the daemon's responses, and decides when to acknowledge them. The daemon keeps a response until
then, for a stream that breaks."""

from __future__ import annotations

from collections import OrderedDict

from hearth.codec import encode

RESPONSES = 64
BYTES = 1 << 20
"""Number of responses, or of their bytes, after which a receipt is due."""
DOWNLOADED_BYTES = 4 << 20
"""Number of bytes of downloads after which a receipt is due."""
_DOWNLOADS = 256
"""Number of downloads that are reported again after a break; older ones ended long ago."""


class Receipts:
    """Receipts of one attachment."""

    def __init__(self, most: int = RESPONSES) -> None:
        """`most`: number of responses after which a receipt is due."""
        self._most = most
        self.responses = 0
        """Results and events that have come."""
        self.responses_due = most
        """Number of responses at which a receipt is due."""
        self._bytes = 0
        self._told = 0
        self._told_bytes = 0
        self._arrived: OrderedDict[int, int] = OrderedDict()  # transfer -> bytes of a download that have come
        self._untold: dict[int, int] = {}
        self._untold_bytes = 0
        self.due = False
        """True if a receipt should be sent now."""

    def response(self) -> None:
        """A result or an event has come."""
        self.responses = count = self.responses + 1
        if count >= self.responses_due:
            self.due = True

    def size(self, size: int) -> None:
        """Counts the bytes of the response that has just come."""
        self._bytes += size
        if self._bytes - self._told_bytes >= BYTES:
            self.due = True

    def arrived(self, transfer: int, size: int) -> None:
        """The first `size` bytes of a download have come."""
        self._untold_bytes += size - self._arrived.get(transfer, 0)
        self._arrived[transfer] = self._untold[transfer] = size
        self._arrived.move_to_end(transfer)
        if len(self._arrived) > _DOWNLOADS:
            self._arrived.popitem(last=False)
        if self._untold_bytes >= DOWNLOADED_BYTES:
            self.due = True

    @property
    def untold(self) -> bool:
        """True if the daemon has not been sent a receipt of all responses."""
        return self.responses != self._told

    @property
    def small(self) -> bool:
        """True if there is a receipt to send that can wait until nothing else is to be sent."""
        return bool(self._untold)

    def request(self) -> bytes:
        """Returns the receipt message, which counts as sent now."""
        message = encode.received(self.responses, self._untold)
        self._untold.clear()
        self._untold_bytes = 0
        self._note()
        return message

    def attached(self) -> None:
        """Notes that an Attach has reported the responses; reports about downloads may have been lost with the stream
        before."""
        self._note()
        self._untold = dict(self._arrived)
        self._untold_bytes = DOWNLOADED_BYTES if self._untold else 0
        self.due = bool(self._untold)

    def _note(self) -> None:
        self._told, self._told_bytes, self.due = self.responses, self._bytes, False
        self.responses_due = self._told + self._most
