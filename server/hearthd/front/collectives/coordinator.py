"""The coordinator: the matcher and the communicators combined. It makes all decisions about collective operations.

Pure: `CollectiveRouter` has the links and the clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from hearth_proto.reasons import Reason, Refusal, from_text
from hearthd.front.collectives.communicators import Communicators
from hearthd.front.collectives.flight_recorder import FlightRecorder
from hearthd.front.collectives.match import DeviceMessage, MatchKey, RankLocation
from hearthd.front.collectives.matcher import Matcher
from hearthd.front.collectives.order import CollectiveOrder


class Coordinator:
    """The coordinator of the node, for groups of local devices and for groups over daemons that were created here."""

    def __init__(self, timeout: float, nonce: str = "") -> None:
        self.recorder = FlightRecorder()
        order = CollectiveOrder()
        self.matcher = Matcher(timeout, self.recorder, order)
        self.communicators = Communicators(self.recorder, order, nonce)

    @property
    def deadline(self) -> float | None:
        """The time at which `expire` must be called. At that time there may be nothing to expire yet."""
        deadlines = (self.matcher.deadline, self.communicators.deadline)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    @property
    def failed(self) -> Counter[Reason]:
        """Number of operations that failed so far, by reason."""
        return self.matcher.failed + self.communicators.failed

    def present(
        self, key: MatchKey, rank: int, location: RankLocation, body: Mapping[str, Any], now: float, count: int = 1
    ) -> list[DeviceMessage]:
        """Handles a rank's part in an operation, or in `count` consecutive operations.

        Each of several operations is ordered after the previous one. Raises KeyError, TypeError or ValueError if `body`
        is not a valid `present` message.
        """
        messages: list[DeviceMessage] = []
        released = self.matcher.order.released
        for failures, match in self.matcher.present_run(key, rank, location, body, now, count):
            messages += failures
            if match is not None:
                messages += self.communicators.submit(match)
            if released:
                self._submit_released(messages)
        return messages

    def withdraw(self, key: MatchKey, rank: int, body: Mapping[str, Any]) -> list[DeviceMessage]:
        """Handles a rank's message that it will not take part in an operation, whether or not it had presented it.

        Raises KeyError or ValueError if `body` is not a valid `withdraw` message.
        """
        refusal = from_text(body["status"])
        return self._submit_released(
            self.communicators.withdraw(key, rank, refusal) or self.matcher.withdraw(key, rank, refusal)
        )

    def _submit_released(self, messages: list[DeviceMessage]) -> list[DeviceMessage]:
        """Submits the operations that were released. Returns `messages` extended by their messages."""
        for match in self.matcher.released():
            messages += self.communicators.submit(match)
        return messages

    def on_message(self, location: RankLocation, body: Mapping[str, Any], owner: str = "") -> list[DeviceMessage]:
        """Handles a message of a rank's process about a communicator. Raises the same errors as `present`."""
        return self._submit_released(self.communicators.on_message(location, body, owner))

    def on_loss(
        self, lost: RankLocation | int, cause: str, owners: Collection[str] = (), *, intended: bool = False
    ) -> list[DeviceMessage]:
        """Handles the loss or the `intended` end of a process or a node, with the ranks that `owners` had there."""
        return self._submit_released(
            self.matcher.on_loss(lost, cause, owners)
            + self.communicators.on_loss(lost, cause, owners, intended=intended)
        )

    def end_owner(self, owner: str, refusal: Refusal) -> list[DeviceMessage]:
        """Removes everything that belongs to a session or group that ends."""
        messages = self.matcher.end_owner(owner, refusal) + self.communicators.end_owner(owner, refusal)
        self.recorder.forget(owner)
        return self._submit_released(messages)

    def expire(self, now: float) -> list[DeviceMessage]:
        """Fails everything whose time limit has passed at `now`. See `deadline`."""
        return self._submit_released(self.matcher.expire(now) + self.communicators.expire(now))
