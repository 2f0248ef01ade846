"""Collective commands: presented to the front, which matches the ranks, and launched on the communicator's track.

The front gives every rank the same order of operations, so no two ranks can wait for each other's. Nothing here waits
for a peer: see `negotiation` for operations that have not been launched, `communicators` and `in_flight` for launched
ones.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from hearth_proto.collectives import KINDS
from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.backend.communicator import CollectiveExchange
from hearthd.device.collectives.abort import Post
from hearthd.device.collectives.in_flight import InFlightCollective
from hearthd.device.collectives.membership import Membership
from hearthd.device.collectives.negotiation import Negotiation, SessionOf
from hearthd.device.collectives.parts import locate
from hearthd.device.collectives.pending import OperationKey, PendingCollective
from hearthd.device.collectives.request import parse
from hearthd.device.context import DeviceContext
from hearthd.device.operation import Operation, Origin
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.session import DeviceSession

_as_json = json.JSONEncoder(separators=(",", ":")).encode


class SubmittedCollective(NamedTuple):
    """A submitted operation with its command and its buffers."""

    origin: Origin
    pending: PendingCollective
    sources: tuple[Buffer, ...]
    """Source buffers that are not also destinations."""
    destinations: tuple[Buffer, ...]


class CollectiveCommands:
    """Handles Collective and AllReduce. Device-handle thread only."""

    def __init__(self, device: DeviceContext, post: Post, session_of: SessionOf) -> None:
        self._device = device
        self._negotiation = Negotiation(device, post, self._say, session_of)
        self.members = self._negotiation.members
        """The communicators that this rank has joined."""
        self._groups: dict[tuple[int, str], tuple[int, int]] = {}
        """This device's rank and the number of ranks, for groups over several daemons, by (channel, group name)."""

    # ---- commands ----

    def all_reduce(self, origin: Origin, command: commands_pb2.AllReduce) -> Operation:
        """Handles AllReduce as a Collective of one operation, with the devices in ascending order."""
        operation = commands_pb2.CollectiveOperation(
            kind=commands_pb2.COLLECTIVE_KIND_ALL_REDUCE,
            source=command.source,
            source_offset=command.source_offset,
            destination=command.destination,
            destination_offset=command.destination_offset,
            count=command.count,
            dtype=command.dtype,
            op=command.op,
        )
        devices = tuple(sorted(command.devices))
        rank_and_size = self._rank_and_size(devices)
        key = OperationKey(origin.session.channel, "", devices, command.sequence)
        return self._operation(origin, key, [operation], rank_and_size, command.timeout_ns)

    def collective(self, origin: Origin, command: commands_pb2.Collective) -> Operation:
        """Handles Collective: one operation or a batch of them, on a group or on devices of this daemon.

        Raises Refusal(INVALID_ARGUMENT), Refusal(INVALID_HANDLE) if the group has no rank of this session on this
        device.
        """
        channel, devices, group = origin.session.channel, tuple(command.devices), command.group.hex()
        if len(command.operations) == 1:
            kind = KINDS.get(command.operations[0].kind)
            origin.name = f"collective {kind}" if kind else origin.name
        if group and devices:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"a collective of group {group} and of devices {list(devices)}",
                fix="name a group that was created or joined, or devices of this daemon, not both",
            )
        rank_and_size = self._groups.get((channel, group)) if group else self._rank_and_size(devices)
        if rank_and_size is None:
            raise Refusal(
                Reason.INVALID_HANDLE,
                f"group {group} does not belong to this session, or has no rank on this device",
                fix="create or join it first: NodeService.CreateGroup, JoinGroup",
                details={"kind": "group", "handle": group},
            )
        key = OperationKey(channel, group, devices, command.sequence)
        return self._operation(origin, key, command.operations, rank_and_size, command.timeout_ns)

    def sync_collective(self, origin: Origin, _command: commands_pb2.SyncCollective) -> Operation:
        """Handles SyncCollective: makes the stream wait, on the device, for its earlier collectives."""

        def run() -> bool:
            self._follow(origin)
            origin.stream.collectives = ()
            origin.reply()
            return True

        return Operation(origin, run, writes=(origin.stream,))

    def _follow(self, origin: Origin) -> None:
        """Makes later work of the stream wait, on the device, for the stream's collectives."""
        for track in origin.stream.collectives:
            self._device.tracks.fence(origin.stream.track, track)

    def _rank_and_size(self, devices: tuple[int, ...]) -> tuple[int, int]:
        """Returns the rank of this device and the number of ranks. Raises Refusal(INVALID_ARGUMENT)."""
        ordinal = self._device.spec.ordinal
        if ordinal not in devices or len(set(devices)) != len(devices):
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"the group {list(devices)} was presented to device {ordinal}",
                fix="name each device once, this one among them",
                details={"requested": list(devices), "device": ordinal},
            )
        return devices.index(ordinal), len(devices)

    # ---- one operation ----

    def _operation(
        self,
        origin: Origin,
        key: OperationKey,
        operations: Sequence[commands_pb2.CollectiveOperation],
        rank_and_size: tuple[int, int],
        timeout_ns: int,
    ) -> Operation:
        device = self._device
        try:
            parts = parse(operations, origin.session.buffers, *rank_and_size, device.server.communicators.check)
        except Refusal as refusal:
            self._negotiation.withdraw(key, refusal)
            raise
        sources = dict.fromkeys(part.source.buffer for part in parts if part.source is not None)
        destinations = dict.fromkeys(part.destination.buffer for part in parts if part.destination is not None)
        only_read = tuple(buffer for buffer in sources if buffer not in destinations)
        seconds = timeout_ns / 1e9 or device.spec.collective_timeout
        pending = self._negotiation.add(origin.session, key, parts, seconds)
        submitted = SubmittedCollective(origin, pending, only_read, tuple(destinations))
        operation = Operation(
            origin,
            partial(self._run, submitted),
            writes=(origin.stream, *destinations),
            reads=only_read,
            needs=tuple(sources),
            spoils=submitted.destinations,
        )
        operation.after = origin.reply
        operation.on_failure = partial(self._negotiation.failed, pending)
        operation.announcement = pending
        return operation

    def _run(self, submitted: SubmittedCollective) -> bool:
        pending = submitted.pending
        if not pending.presented:
            locate(pending.parts)
            if not self._negotiation.present(pending):
                return False
        if pending.error is not None:
            if submitted.origin.stream.flights:  # errors surface in the stream's order, and these have not ended yet
                self._negotiation.wait_for_earlier(pending)
                return False
            raise pending.error
        if pending.comm is None or self._device.idle_work.occupied:
            return False
        member = self.members.get(pending.comm)
        if member is None:
            raise self.members.ended_refusal(pending.comm)
        if member.failing or not (member.flights.next(pending.index) and self._negotiation.next(pending)):
            return False
        self._launch(submitted, member, locate(pending.parts))
        return True

    def _launch(
        self, submitted: SubmittedCollective, member: Membership, exchanges: Sequence[CollectiveExchange]
    ) -> None:
        device, track, origin, pending = self._device, member.track, submitted.origin, submitted.pending
        stream, destinations = origin.stream, submitted.destinations
        device.tracks.fence(track, stream.track)
        device.tracks.claim_position(
            track, [buffer.usage for buffer in destinations], [buffer.usage for buffer in submitted.sources]
        )
        size = sum(part.size for part in pending.parts)
        device.begin(stream, size, track=track)
        self.members.enqueue(member, exchanges)
        flight = InFlightCollective(origin, pending.key, destinations, member.flights, device.tracks)
        flight.outcome.then(partial(self._negotiation.settled, pending))
        self.members.launched(member, flight, pending.deadline)
        self._negotiation.launched(pending)
        if track not in stream.collectives:
            stream.collectives = (*(other_track for other_track in stream.collectives if other_track.users), track)
        origin.session.touch(track, device.tracks.ordering.position(track.index))
        # A barrier has no buffers that later operations could wait for, so the stream waits for the barrier itself.
        if any(part.kind == "barrier" for part in pending.parts):
            self._follow(origin)
        device.telemetry.collectives += 1
        device.telemetry.collective_bytes += size

    # ---- the front's messages ----

    def message(self, payload: bytes) -> None:
        """Handles one COLLECTIVE frame; see hearthd/front/collectives/matcher.py for the protocol.

        Some frames come from other daemons: invalid ones are ignored.
        """
        try:
            message = json.loads(payload)
            kind = message["op"]
            handler = self.members.handlers.get(kind)
            if handler is not None:
                handler(message)
            elif kind in ("go", "fail"):
                self._negotiation.answered(message)
            elif kind == "group":
                rank_and_size = int(message["rank"]), int(message["ranks"])
                self._groups[int(message["channel"]), str(message["group"])] = rank_and_size
            elif kind == "ungroup":
                channel, group = int(message["channel"]), str(message["group"])
                if self._groups.pop((channel, group), None) is not None:
                    self._negotiation.leave(channel, group)
        except (KeyError, TypeError, ValueError) as error:
            print(f"a collective frame cannot be decoded: {error!r}: {payload[:200]!r}", file=sys.stderr)

    def flush(self) -> None:
        """Sends those messages to the front that need not wait for more. To be called before the outbox is emptied."""
        self._negotiation.outgoing.settle()

    def _say(self, message: dict[str, Any]) -> None:
        self._device.outbox.put(Kind.COLLECTIVE, _as_json(message).encode())

    # ---- the end of a session, and the loop ----

    def close(self, session: DeviceSession) -> None:
        """Forgets the session's groups and operations.

        Its commands have been abandoned; launched operations run to their end.
        """
        for channel, group in [key for key in self._groups if key[0] == session.channel]:
            del self._groups[channel, group]
        self._negotiation.close(session)

    def poll(self, limit: float | None) -> float | None:
        """Checks, at intervals, for overdue operations.

        Returns the longest time that the loop may sleep, at most `limit`.
        """
        return self._negotiation.poll(self.members.poll(limit))
