"""The communicators of one device process: joined on helper threads, and monitored while they have operations.

An operation that misses its deadline, and a communicator that has failed, are reported to the front, which makes every
rank abandon the communicator (`abort`) and gives the reason. If the front does not answer, this process abandons the
communicator by itself. Operations that were running on it then become errors of their streams.
"""

from __future__ import annotations

import base64
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hearth_proto.reasons import Reason, Refusal, to_text
from hearthd.device.backend.communicator import CollectiveExchange, CommunicatorFactory, RankCommunicator
from hearthd.device.collectives.abort import AbortedCommunicator, CommunicatorAborts, Post, run_on_helper
from hearthd.device.collectives.in_flight import InFlightCollective
from hearthd.device.collectives.membership import Membership, decode_refusal, in_flight_refusal, not_started
from hearthd.device.collectives.outgoing import Send
from hearthd.device.collectives.pending import LaunchOrder
from hearthd.device.context import DeviceContext
from hearthd.device.platform.spin_policy import at_most
from hearthd.device.streams.stream_pool import PooledStream

CHECK_S = 0.05
"""Interval at which communicators are checked for failures, in seconds."""

DECISION_S = 0.5
"""Time limit, in seconds, for the front to decide on a communicator that was reported as failed."""

MAX_ENDED = 256
"""Number of ended communicators whose refusal is remembered: operations may still be waiting for their turn on them."""


class Memberships:
    """Communicators that this rank has joined. Device-handle thread, except for the work of helper threads."""

    def __init__(self, device: DeviceContext, post: Post, send: Send) -> None:
        self._device = device
        self._post = post
        self._send = send
        self._live: dict[str, Membership] = {}
        self._busy: dict[Membership, None] = {}
        """Memberships that must be checked even without an event."""
        self._ended: OrderedDict[str, Refusal] = OrderedDict()
        self._ids: dict[str, tuple[CommunicatorFactory, bytes]] = {}
        """Ids created by this rank for communicators that it has not joined yet, with their factories."""
        self._making: dict[str, bool] = {}
        """Communicators that a helper thread is creating or joining, each with True while it is still wanted."""
        self.aborts = CommunicatorAborts(device, post, send)
        """The communicators that are being aborted."""
        self.decision_s = DECISION_S
        """Time limit, in seconds, for the front to decide on a communicator that was reported as failed."""
        self._shared: tuple[PooledStream, LaunchOrder] | None = None
        self._next_check = 0.0
        self.handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "create_id": self._on_create_id,
            "join": self._on_join,
            "abort": self._on_abort,
        }

    def get(self, comm: str) -> Membership | None:
        """Returns this rank's membership in a communicator; None if it has not joined, or the communicator is gone."""
        return self._live.get(comm)

    def ended_refusal(self, comm: str) -> Refusal:
        """Returns the refusal of an operation whose communicator is gone."""
        return self._ended.get(comm) or not_started()

    # ---- operations ----

    def enqueue(self, member: Membership, exchanges: Sequence[CollectiveExchange]) -> None:
        """Enqueues a communicator's next operation on its track. Raises Refusal.

        The track already waits for all work that the operation depends on.
        """
        if exchanges:
            try:
                member.communicator.enqueue(exchanges, member.track.stream)
            except Refusal as refusal:
                self.broken(member, f"rank could not launch: {refusal.message}")
                raise

    def launched(self, member: Membership, flight: InFlightCollective, deadline: float) -> None:
        """Starts to monitor an operation that has been enqueued."""
        member.flights.launch(flight, deadline)
        self._busy[member] = None
        self._device.tracks.on_complete(member.track, partial(self._arrived, member, flight))

    def _arrived(self, member: Membership, flight: InFlightCollective) -> None:
        """Handles the end of an operation on the device, successful or not."""
        if flight.outcome.settled:
            return
        reason = member.communicator.failure_reason()
        # the contents of its destinations are undefined: the operation has not ended before the front's decision
        if reason:
            self.broken(member, reason)
            return
        member.flights.finish(flight)
        flight.succeed()

    # ---- messages of the front ----

    def _on_create_id(self, message: dict[str, Any]) -> None:
        comm, ranks = str(message["comm"]), int(message["ranks"])
        if self._is_known(comm):
            return
        factory = self._factory(message)
        self._make(comm, lambda: partial(self._created, factory, comm, factory.unique_id(ranks)))

    def _on_join(self, message: dict[str, Any]) -> None:
        comm, rank, ranks = str(message["comm"]), int(message["rank"]), int(message["ranks"])
        unique_id = base64.b64decode(str(message["unique_id"]), validate=True)
        if self._is_known(comm):
            return
        factory, group = self._factory(message), bool(message.get("group"))
        self._make(comm, lambda: partial(self._joined, comm, factory.join(unique_id, rank, ranks), group))

    def _on_abort(self, message: dict[str, Any]) -> None:
        comm = str(message["comm"])
        if self._making.get(comm):
            # A running join cannot be cancelled from outside. Its thread is left alone, and a communicator that it may
            # still return is released then.
            self._making[comm] = False
            self._device.telemetry.joins_abandoned += 1
            return
        self._forget_id(comm)
        member = self._live.get(comm)
        if member is None:
            return
        encoded = message.get("status")
        refusal = decode_refusal(encoded) if encoded else None
        reason = str(message.get("reason") or "no reason was given")
        self._end(
            member, (lambda _flight: refusal) if refusal is not None else partial(in_flight_refusal, reason, 0), refusal
        )

    def _factory(self, message: dict[str, Any]) -> CommunicatorFactory:
        """Returns the factory for the transport that the message names: copies between devices, or collectives."""
        server = self._device.server
        return server.copy_communicators if message.get("transport") == "copy" else server.communicators

    def _is_known(self, comm: str) -> bool:
        return comm in self._live or comm in self._making or comm in self._ended

    # ---- joining ----

    def _make(self, comm: str, work: Callable[[], Callable[[], None]]) -> None:
        """Creates an id or joins a communicator on a helper thread.

        `work` does so, and returns the function that records the result.
        """

        def run() -> Callable[[], None]:
            try:
                return work()
            except Exception as error:
                return partial(self._join_failed, comm, error)

        self._making[comm] = True
        run_on_helper(self._post, run)

    def _created(self, factory: CommunicatorFactory, comm: str, unique_id: bytes) -> None:
        if self._making.pop(comm):
            self._ids[comm] = factory, unique_id
            self._send({"op": "id", "comm": comm, "unique_id": base64.b64encode(unique_id).decode()})
        else:
            factory.forget(unique_id)

    def _joined(self, comm: str, communicator: RankCommunicator, group: bool) -> None:
        self._ids.pop(comm, None)
        if not self._making.pop(comm):  # it was abandoned in the meantime
            self.aborts.end(AbortedCommunicator(comm, communicator, None, owns_track=False), has_operations=False)
            return
        tracks = self._device.tracks
        if group:
            # The coordinator of another group does not know this group's order: on one track for both, each could wait
            # for the other.
            track, lane = tracks.acquire_exclusive(), LaunchOrder()
        else:
            self._shared = self._shared or (tracks.acquire_exclusive(), LaunchOrder())
            track, lane = self._shared
        self._live[comm] = Membership(comm, communicator, track, lane, group)
        self._send({"op": "joined", "comm": comm})

    def _join_failed(self, comm: str, error: Exception) -> None:
        is_wanted = self._making.pop(comm, True)
        self._forget_id(comm)
        if not is_wanted:
            return
        if not isinstance(error, Refusal):
            traceback.print_exception(error, file=sys.stderr)
            reason = f"device {self._device.spec.ordinal} could not join: {error}"
            error = Refusal(Reason.COMMUNICATOR_FAILED, reason, fix="see the daemon's log")
        self._send({"op": "join_failed", "comm": comm, "status": to_text(error)})

    def _forget_id(self, comm: str) -> None:
        factory, unique_id = self._ids.pop(comm, (None, b""))
        if factory is not None:
            factory.forget(unique_id)

    # ---- failing ----

    def broken(self, member: Membership, reason: str, sequence: int = 0, *, timed_out: bool = False) -> None:
        """Reports to the front that this rank cannot continue in the communicator.

        `sequence` is the number of the operation that is the cause.
        """
        if member.failing:
            return
        member.refusal = partial(in_flight_refusal, reason, sequence if timed_out else 0)
        member.unstarted_refusal = not_started(reason, timed_out)
        self._report_progress(member, at_once=True)
        member.reported = time.monotonic()
        self._busy[member] = None
        self._send(
            {"op": "failed", "comm": member.comm, "reason": reason, "timed_out": timed_out, "sequence": sequence}
        )

    def _end(
        self,
        member: Membership,
        refusal: Callable[[InFlightCollective], Refusal],
        unstarted_refusal: Refusal | None = None,
    ) -> None:
        """Abandons a communicator.

        Its running operations have failed, which is recorded before the abort releases them.
        """
        del self._live[member.comm]
        self._busy.pop(member, None)
        if unstarted_refusal is not None:
            self._ended[member.comm] = unstarted_refusal
            while len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)
        flights = member.flights.pop_all()
        self._device.telemetry.collectives_failed += len(flights)
        for flight in flights:
            flight.fail(refusal(flight))
        aborted = AbortedCommunicator(member.comm, member.communicator, member.track, owns_track=member.group)
        self.aborts.end(aborted, has_operations=bool(flights))
        self._device.kick(None)

    # ---- the loop ----

    def poll(self, limit: float | None) -> float | None:
        """Checks, at intervals, for failures and overdue operations, and reports the progress.

        Returns the longest time that the loop may sleep, at most `limit`.
        """
        if not (self._live or self.aborts.watching):
            return limit
        now = time.monotonic()
        if now >= self._next_check:
            self._next_check = now + CHECK_S
            for member in list(self._live.values()):
                self._check(member, now)
            self.aborts.check(now)
        if not (self._busy or self.aborts.watching):
            return limit
        return at_most(self._next_check - now, limit)

    def _report_progress(self, member: Membership, *, at_once: bool = False) -> None:
        done = member.flights.progress(time.monotonic(), at_once=at_once)
        if done is not None:
            self._send({"op": "progress", "comm": member.comm, "done": done})

    def _check(self, member: Membership, now: float) -> None:
        self._report_progress(member)
        if member.idle:
            self._busy.pop(member, None)
        if member.refusal is not None:
            if now > member.reported + self.decision_s:
                self._end(member, member.refusal, member.unstarted_refusal)
            return
        reason = member.communicator.failure_reason()
        if reason:
            self.broken(member, reason)
            return
        overdue = member.flights.overdue(now)
        if overdue is not None:
            self.broken(member, f"{overdue.description} did not complete in time", overdue.sequence, timed_out=True)
