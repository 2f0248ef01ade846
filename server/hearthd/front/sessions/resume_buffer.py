"""Results and events of a resumable attachment that its client has not acknowledged."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from hearth_proto.reasons import Reason, Refusal

_HARD_FACTOR = 16
MIN_HARD_RESPONSES = 1 << 16
"""A multiple of `most`, and a number of responses. Above both, even small responses overrun the buffer, because over a
lane nothing stops their client from sending."""


class ResumeBuffer:
    """Responses that a client has not acknowledged, kept in order.

    They are numbered from 1, and kept until `Received.responses` covers them.

    At `max_responses` responses or `max_bytes` bytes no further work is taken. Above `hard_bytes` bytes, or above
    `min_hard_responses` responses and a multiple of `max_responses`, all responses are dropped, because the client has
    then sent work without ever reading.
    """

    def __init__(
        self, max_bytes: int, max_responses: int, hard_bytes: int, min_hard_responses: int = MIN_HARD_RESPONSES
    ) -> None:
        self.received = 0
        """Number of responses that the client has acknowledged."""
        self.bytes = 0
        self.overrun: Refusal | None = None
        """Set once the responses were dropped. The attachment can then not be resumed."""
        self._kept: deque[bytes] = deque()
        self._unnumbered: deque[bytes] = deque()
        self._max_bytes = max_bytes
        self._max_responses = max_responses
        self._hard_bytes = hard_bytes
        self._hard_responses = max(_HARD_FACTOR * max_responses, min_hard_responses)

    @property
    def number(self) -> int:
        """Number of the last response that has a number."""
        return self.received + len(self._kept)

    @property
    def total(self) -> int:
        """Number of responses so far, including those put aside."""
        return self.number + len(self._unnumbered)

    @property
    def all_acknowledged(self) -> bool:
        """True if the client has acknowledged all of them."""
        return not self._kept

    @property
    def full(self) -> bool:
        """True if no more work may be taken before the client acknowledges responses."""
        return self.bytes >= self._max_bytes or len(self._kept) >= self._max_responses

    def add(self, payload: bytes) -> None:
        """Adds a response."""
        self._append(self._kept, payload)

    def add_unnumbered(self, payload: bytes) -> None:
        """Adds a response without a number.

        Until `assign_numbers`, other responses that the client may already have get numbers before it.
        """
        self._append(self._unnumbered, payload)

    def assign_numbers(self) -> None:
        """Numbers the responses that were put aside, after all others."""
        self._kept.extend(self._unnumbered)
        self._unnumbered.clear()

    def _append(self, queue: deque[bytes], payload: bytes) -> None:
        if self.overrun is not None:
            return
        queue.append(payload)
        self.bytes += len(payload)
        count = len(self._kept) + len(self._unnumbered)
        if self.bytes > self._hard_bytes or count > self._hard_responses:
            self.overrun = Refusal(
                Reason.QUEUE_FULL,
                f"{count} results and events ({self.bytes} bytes) wait for the client's acknowledgement; the "
                f"maximum is {self._hard_bytes} bytes.",
                fix="Read the stream while sending, acknowledge what arrived (ExecuteRequest.received), and use "
                "transfers for "
                "large reads.",
                details={"requested": self.bytes, "allowed": self._hard_bytes},
            )
            self._kept.clear()
            self._unnumbered.clear()
            self.bytes = 0

    def release(self, received: int, *, lossy: bool = False) -> None:
        """Drops the responses up to number `received`, which have reached the client.

        Raises `INVALID_ARGUMENT` for an impossible number.

        With `lossy` the client may have received more responses than are known here, all before those that were put
        aside.
        """
        if self.overrun is not None:
            raise self.overrun
        if lossy and received > self.number:
            self.bytes -= sum(map(len, self._kept))
            self._kept.clear()
            self.received = received
        if not self.received <= received <= self.number:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"{received} results and events were acknowledged; {self.received} to {self.number} can be "
                f"acknowledged.",
                fix="Count the results and events, not the acks, of the whole attachment.",
                details={"requested": received, "allowed": f"{self.received} to {self.number}"},
            )
        for _ in range(received - self.received):
            self.bytes -= len(self._kept.popleft())
        self.received = received

    def __iter__(self) -> Iterator[bytes]:
        """Iterates over the responses that were not acknowledged, oldest first."""
        return islice(self._kept, len(self._kept))
