"""Groups of devices, of one node or of several."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from hearth import stream as streams
from hearth import telemetry
from hearth.arrays.device_copy import moved
from hearth.collectives.batch import Batch, check_none_open, opened
from hearth.collectives.commands import present
from hearth.collectives.flight_recorder import FlightRecord, records
from hearth.collectives.group_members import Named, checked, named
from hearth.collectives.operands import check_array, check_out, check_rank, nanoseconds
from hearth.collectives.operations import Collectives
from hearth.collectives.part import Part, by_rank
from hearth.collectives.rendezvous import Formed, describe, form
from hearth.errors import ArgumentError, ClosedError
from hearth.session.collective_order import Roster, in_order, sorted_order
from hearth_proto.v1 import commands_pb2, node_pb2

if TYPE_CHECKING:
    from types import TracebackType

    from hearth.arrays.array import DeviceArray
    from hearth.device import Device
    from hearth.session.lease import NodeSession
    from hearth.stream import Stream

TIMEOUT_S = 30.0


class Group(Collectives):
    """Devices that compute collectives together: ``Group(node.devices)``, or ``Group([a.device(0), b.device(0)])``
    where `a` and `b` are connections to two daemons, or to one. One device is a group as well.

    A device's rank is its place in the list. Groups of one session's devices cost nothing to make; those over several
    sessions are formed here, by all their daemons (the first device's coordinates), in `timeout` seconds (None: 30),
    and are given up by `close`, at the end of ``with``, or when collected.

    Raises `ArgumentError` for no devices and for one named twice; over daemons also `TimeoutError`, and what they
    answer: `AuthenticationError`, `ConnectError`, `CommunicatorError`, ... (``details["node"]`` says which did).
    """

    def __init__(self, devices: Sequence[Device], *, timeout: float | None = None) -> None:
        self.devices = checked(devices)
        nanoseconds(timeout)
        self._timeout = TIMEOUT_S if timeout is None else timeout
        self._closed = False
        self._connections = {rank: device._connection for rank, device in enumerate(self.devices)}
        self._sessions = [device._node._session for device in self.devices]
        ordinals = [device.ordinal for device in self.devices]
        self._ordinals = ordinals
        self._formed: list[Formed] = []
        """The group over daemons, and those of two of its ranks that have sent each other something."""
        self._rosters: dict[tuple[int, ...], Roster] = {}
        """Those of what was formed, by the ranks in it."""
        self._forming = threading.Lock()
        self._finalizer: weakref.finalize[..., Group] | None = None
        if len(set(self._sessions)) == 1:
            self._given, self._sorted = in_order(ordinals), sorted_order(ordinals)
        else:
            self._form_all()

    def _form_all(self) -> None:
        self._given = self._sorted = self._form(tuple(range(len(self.devices))))
        self._finalizer = weakref.finalize(self, _abandon, self._formed)
        self._finalizer.atexit = False  # the sessions end then, and their groups with them

    # ---- what it is ----

    def __len__(self) -> int:
        """The number of ranks."""
        return len(self.devices)

    @property
    def id(self) -> str:
        """What a group over daemons is called in their logs; empty for a group of one session."""
        return self._formed[0].id.hex() if self._formed else ""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        if isinstance(self._given.name, tuple):
            return f"<hearth.Group of devices {self._ordinals}{closed}>"
        listed = ", ".join(f"{device.node.name}/{device.ordinal}" for device in self.devices)
        return f"<hearth.Group {self.id[:8]} of {listed}{closed}>"

    # ---- from one rank to another, and of all ranks at once; sent one way ----

    def send(self, array: DeviceArray, to: int, timeout: float | None = None) -> None:
        """Sends an array from its device to the rank `to`, which has to receive one of the same size and dtype.

        Between two ranks outside of a batch, what one does first has to meet what the other does first, and so on: a
        send its receive. The two may be called in either order and from different threads. Both ranks sending first,
        or everybody around a ring, belongs into a `batch`.
        """
        timeout_ns = self._begin(timeout)
        source = check_array("array", array)
        rank, peer = self._rank_of("array", source), check_rank("to", to, len(self.devices))
        dtype, size = moved(source, source.size)
        self._run_pair(Part(rank, commands_pb2.COLLECTIVE_KIND_SEND, source, None, size, dtype, peer=peer), timeout_ns)

    def recv(self, array: DeviceArray, source: int, timeout: float | None = None) -> DeviceArray:
        """Receives into an array, on its device, what the rank `source` sends to that device's; see `send`. Returns the
        array."""
        timeout_ns = self._begin(timeout)
        target = check_out("array", array)
        rank, peer = self._rank_of("array", target), check_rank("source", source, len(self.devices))
        dtype, size = moved(target, target.size)
        self._run_pair(Part(rank, commands_pb2.COLLECTIVE_KIND_RECV, None, target, size, dtype, peer=peer), timeout_ns)
        return target

    def barrier(self, timeout: float | None = None) -> None:
        """Lets later work on each device's current stream wait, on the device, until all of them have come this far.

        Sent one way; a synchronize after it waits for it. `timeout` as for all operations, see `Collectives`.
        """
        timeout_ns = self._begin(timeout)
        kind = commands_pb2.COLLECTIVE_KIND_BARRIER
        self._run((Part(rank, kind) for rank in range(len(self))), 1, timeout_ns)

    def synchronize(self) -> None:
        """Lets later work on each device's current stream wait, on the device, for the collectives so far."""
        self._check_open()
        for connection in self._connections.values():
            attachment = connection.attachment()
            command = commands_pb2.Command(
                stream=streams.resolve(None, connection, attachment), sync_collective=commands_pb2.SyncCollective()
            )
            attachment.submit(command)

    def batch(self, timeout: float | None = None) -> Batch:
        """``with group.batch():`` presents what the block calls at its end, as one NCCL group.

        For what would wait for each other otherwise (a ring of sends and receives), and for many small operations.
        Every send of the block needs its receive in it. Nothing is presented where the block, or a check, raises. Only
        the calls of this thread (or task) belong to it, on one stream of each device; `timeout`, in seconds, is for all
        of them together.
        """
        check_none_open(self)
        return Batch(self, self._connections, self._begin(timeout), self._present_batch)

    def subgroup(self, ranks: Iterable[int]) -> Group:
        """A group of some of the devices, in the order of `ranks`; formed anew where it is over daemons."""
        return Group(self._chosen(ranks), timeout=self._timeout)

    def _chosen(self, ranks: Iterable[int]) -> list[Device]:
        self._check_open()
        return [self.devices[check_rank("rank", rank, len(self))] for rank in ranks]

    def rebuild(self, without: Iterable[Named] | Named = ()) -> Group:
        """A fresh group of the same devices, in their order, less those named by rank, device or whole node; this one
        is closed.

        For after a `CommunicatorError`. A node that is named is not asked for anything, so that it may be gone. Raises
        as `Group` does, and then this one stays as it is.
        """
        fresh = Group(self._left(without), timeout=self._timeout)
        self.close()
        return fresh

    def _left(self, without: Iterable[Named] | Named) -> list[Device]:
        gone = named(self.devices, without)
        left = [device for rank, device in enumerate(self.devices) if rank not in gone]
        if not left:
            raise ArgumentError(
                f"no device of {self!r} is left.", reason="INVALID_ARGUMENT", fix="leave one out of `without`."
            )
        return left

    def flight_recorder(self) -> list[FlightRecord]:
        """The group's last operations as its daemon (the first device's) has them, the newest last; bounded.

        Groups of one session that have the same devices share it. Raises `ConnectError` where that daemon is gone.
        """
        asked = {formed.coordinator for formed in self._formed}
        asked |= {session for session in self._sessions if not self._formed or self._sessions.count(session) > 1}
        found: list[tuple[node_pb2.GroupInfo, Mapping[int, int]]] = []
        for session in asked:
            for info in describe(session):
                ranks = self._ranks_of(session, info)
                if ranks is not None:
                    found.append((info, dict(enumerate(ranks))))
        return records(found)

    # ---- end ----

    def close(self) -> None:
        """Gives the group up: its operations that are under way fail where it is over daemons, and none can be
        presented any more. Waits some seconds at most. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._finalizer is not None:
            self._finalizer.detach()
        for formed in list(self._formed):
            formed.leave()
            for connection in self._connections.values():
                connection.turns.forget(formed.id)

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- inside ----

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(
                f"{self!r} cannot be used any more.", reason="CANCELLED", fix="make another: hearth.Group(devices)."
            )

    def _begin(self, timeout: float | None) -> int:
        self._check_open()
        if timeout is not None and opened(self) is not None:
            raise ArgumentError(
                f"timeout is {timeout} s inside a batch, which has one for all.",
                reason="INVALID_ARGUMENT",
                fix="with group.batch(timeout=...):",
            )
        return nanoseconds(timeout)

    def _run(self, presented: Iterable[Part], size: int, timeout_ns: int, ordered: bool = False) -> None:
        if not size:
            return  # as every rank knows
        batch = opened(self)
        if batch is not None:
            batch.add(presented)
        else:
            present(self._connections, self._given if ordered else self._sorted, by_rank(presented), timeout_ns)

    def _run_pair(self, part: Part, timeout_ns: int) -> None:
        assert part.peer is not None
        batch = opened(self)
        if batch is not None:
            batch.add([part])
            return
        if part.peer == part.rank:
            raise ArgumentError(
                f"rank {part.rank} sends to or receives from itself, and would wait for itself.",
                reason="INVALID_ARGUMENT",
                fix="do both in one group.batch(), or y.copy_from(x).",
            )
        present(self._connections, self._pair(part.rank, part.peer), {part.rank: [part]}, timeout_ns)

    def _rank_of(self, what: str, array: DeviceArray) -> int:
        for rank, device in enumerate(self.devices):
            if array._connection is device._connection:
                return rank
        raise ArgumentError(
            f"{what} is {array!r}, on no device of {self!r}.",
            reason="INVALID_ARGUMENT",
            fix="pass an array that was made on one of group.devices.",
        )

    def _present_batch(
        self, parts: Mapping[int, Sequence[Part]], timeout_ns: int, on: Mapping[int, Stream | None]
    ) -> None:
        self._check_open()
        present(self._connections, self._given, parts, timeout_ns, on)

    def _pair(self, rank: int, peer: int) -> Roster:
        """Who has to come to a send between two ranks. Forms a group of the two over their daemons, the first time."""
        if self._sessions[rank] is self._sessions[peer]:
            return sorted_order(self._ordinals, (rank, peer))
        pair = (min(rank, peer), max(rank, peer))  # all there are, where the group has two
        with self._forming:
            roster = self._rosters.get(pair) or self._form(pair)
        self._check_open()
        return roster

    @telemetry.traced("hearth.group", telemetry.of_group)
    def _form(self, ranks: tuple[int, ...]) -> Roster:
        formed = form([(self._sessions[rank], self._ordinals[rank]) for rank in ranks], self._timeout)
        self._formed.append(formed)
        self._rosters[ranks] = roster = Roster(formed.id, ranks)
        if self._closed:  # meanwhile, by another thread
            formed.leave()
        return roster

    def _ranks_of(self, session: NodeSession, info: node_pb2.GroupInfo) -> tuple[int, ...] | None:
        """Our ranks, in the order of one of a session's groups; None where that has nothing to do with this group."""
        if info.group:
            coordinated = any(each.id == info.group and each.coordinator is session for each in self._formed)
            members = [roster.members for roster in self._rosters.values() if roster.name == info.group]
            return members[0] if coordinated and members else None
        name = tuple(member.device for member in info.members)
        ranks = {self._ordinals[rank]: rank for rank in range(len(self)) if self._sessions[rank] is session}
        if not all(ordinal in ranks for ordinal in name):
            return None
        ours = name in (self._given.name, self._sorted.name) or len(name) == 2
        return tuple(ranks[ordinal] for ordinal in name) if ours else None


def _abandon(formed: list[Formed]) -> None:
    """The garbage collector calls this: see `NodeSession.abandon`."""
    for each in formed:
        each.coordinator.later(each.leave)
