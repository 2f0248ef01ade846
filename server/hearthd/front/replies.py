"""Results and events of a resumable attachment that its client does not have, as far as it has said."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from hearth_proto.reasons import Reason, Refusal


class Replies:
    """Numbered from 1, kept in order until the client says that they came (`Received.responses`).

    `most` and `most_bytes` are where no more work is taken; beyond `hard` bytes all is given up, for then the client
    has sent work without ever reading.
    """

    def __init__(self, most_bytes: int, most: int, hard: int) -> None:
        self.received = 0
        """How many have come to the client."""
        self.bytes = 0
        self.overrun: Refusal | None = None
        """Set once they were given up: the attachment cannot be resumed."""
        self._kept: deque[bytes] = deque()
        self._most_bytes = most_bytes
        self._most = most
        self._hard = hard

    @property
    def number(self) -> int:
        """Of the last one."""
        return self.received + len(self._kept)

    @property
    def full(self) -> bool:
        """Whether no more work may be taken before the client has said what came."""
        return self.bytes >= self._most_bytes or len(self._kept) >= self._most

    def keep(self, payload: bytes) -> None:
        """One more."""
        if self.overrun is not None:
            return
        self._kept.append(payload)
        self.bytes += len(payload)
        if self.bytes > self._hard:
            self.overrun = Refusal(
                Reason.QUEUE_FULL,
                f"{self.bytes} bytes of results and events wait for the client to say that they came; the most is "
                f"{self._hard}.",
                fix="Read the stream while sending, say what came (ExecuteRequest.received), and use transfers for "
                "large reads.",
                details={"requested": self.bytes, "allowed": self._hard},
            )
            self._kept.clear()
            self.bytes = 0

    def release(self, received: int) -> None:
        """So many have come to the client. Raises `INVALID_ARGUMENT` for a number that cannot be."""
        if self.overrun is not None:
            raise self.overrun
        if not self.received <= received <= self.number:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"{received} results and events are said to have come; {self.received} to {self.number} can have.",
                fix="Count the results and events, not the acks, of the whole attachment.",
                details={"requested": received, "allowed": f"{self.received} to {self.number}"},
            )
        for _ in range(received - self.received):
            self.bytes -= len(self._kept.popleft())
        self.received = received

    def __iter__(self) -> Iterator[bytes]:
        """Those that have not come, oldest first."""
        return islice(self._kept, len(self._kept))
