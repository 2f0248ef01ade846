"""Groups of devices, of one node or of several, and their collective operations, by NCCL's names.

Covers membership, ranks and commands that are sent one way: all that `hearth.Group` and `hearth.aio.Group` have in
common. Does not cover calls that wait; each of the two classes has its own.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hearth import base_stream as streams
from hearth import telemetry
from hearth.arrays.base_array import BaseArray
from hearth.arrays.device_copy import moved
from hearth.base_device import BaseDevice
from hearth.collectives.batch import Batch, check_none_open, opened
from hearth.collectives.commands import present
from hearth.collectives.flight_recorder import FlightRecord, records
from hearth.collectives.group_members import checked, named
from hearth.collectives.operands import (
    Operands,
    check_array,
    check_out,
    check_rank,
    nanoseconds,
    reducible,
    reduction,
    split,
)
from hearth.collectives.part import RankPart, among_all, by_rank, from_root, to_root
from hearth.collectives.rendezvous import Formed, describe, form
from hearth.errors import ArgumentError, ClosedError
from hearth.session.collective_order import RankOrder, in_order, sorted_order
from hearth_proto.v1 import commands_pb2, node_pb2

if TYPE_CHECKING:
    from hearth.base_stream import BaseStream
    from hearth.collectives.group_members import Named
    from hearth.session.lease import NodeSession

TIMEOUT_S = 30.0
D = TypeVar("D", bound=BaseDevice[Any, Any])
"""The class of the group's devices."""
A = TypeVar("A", bound=BaseArray)
"""The class of their arrays."""


class BaseGroup(Generic[D, A]):
    """Abstract group of devices, in which every rank takes part in collective operations.

    Operations are sent one way, each device's part on its current stream: a part begins once the work before it on the
    stream is done and all ranks have come to it; later work on the arrays waits for it. What goes wrong there
    (`CommunicatorError`, `BufferLostError`) surfaces at a sync, and reading what was to be written raises it as well.

    `arrays` has one array for each device, in the group's order, all of one shape and dtype, and contiguous; so has
    `outs`, which may be the same arrays where it says so. What is written is returned. `timeout`, in seconds, is for
    all ranks to be there and to finish; None: the daemon's default. Reductions take NCCL's dtypes (integers, float16
    to float64, and of ml_dtypes bfloat16 and the float8 that the device has), the others every dtype. All raise
    `ArgumentError` and `DtypeError` where shapes, dtypes, ranks or devices do not fit, `ClosedError` once the group is
    closed, and then nothing was sent.
    """

    def __init__(self, devices: Sequence[D], *, timeout: float | None = None) -> None:
        self.devices: list[D] = checked(devices)
        self._operands: Operands[A] = Operands(self.devices)
        nanoseconds(timeout)
        self._timeout = TIMEOUT_S if timeout is None else timeout
        self._closed = False
        self._connections = {rank: device._connection for rank, device in enumerate(self.devices)}
        self._sessions = [device._node._session for device in self.devices]
        ordinals = [device.ordinal for device in self.devices]
        self._ordinals = ordinals
        self._formed: list[Formed] = []
        """The group over daemons, and those of two of its ranks that have sent each other something."""
        self._orders: dict[tuple[int, ...], RankOrder] = {}
        """Rank orders of the groups in `_formed`, by the ranks in each."""
        self._forming = threading.Lock()
        self._finalizer: weakref.finalize[..., BaseGroup[D, A]] | None = None
        if len(set(self._sessions)) == 1:
            self._given, self._sorted = in_order(ordinals), sorted_order(ordinals)
        else:
            self._form_all()

    # ---- attributes ----

    def __len__(self) -> int:
        """The number of ranks."""
        return len(self.devices)

    @property
    def id(self) -> str:
        """The group's name in the daemons' logs; empty for a group of one session."""
        return self._formed[0].id.hex() if self._formed else ""

    @property
    def closed(self) -> bool:
        """True once the group was closed."""
        return self._closed

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        if isinstance(self._given.name, tuple):
            return f"<hearth.Group of devices {self._ordinals}{closed}>"
        listed = ", ".join(f"{device.node.name}/{device.ordinal}" for device in self.devices)
        return f"<hearth.Group {self.id[:8]} of {listed}{closed}>"

    # ---- operations of all ranks ----

    def all_reduce(
        self,
        arrays: Sequence[A],
        op: str = "sum",
        outs: Sequence[A] | None = None,
        timeout: float | None = None,
    ) -> list[A]:
        """Reduces the arrays elementwise, so that each device has the result: in place, or in `outs`.

        Args:
            arrays: One array for each device, in the group's order, all of one shape and dtype, and contiguous.
            op: ``"sum"``, ``"mean"``, ``"min"``, ``"max"`` or ``"prod"``.
            outs: Arrays for the results, which may be `arrays`; None: in place.
            timeout: Seconds for all ranks to come and to finish; None: the daemon's default.

        Returns:
            The arrays that were written.
        """
        timeout_ns = self._begin(timeout)
        number = reduction(op)
        sources = self._operands.arrays(arrays, written=outs is None)
        dtype, size = reducible(sources[0]), sources[0].size
        targets = sources if outs is None else self._operands.outs(outs, sources[0].shape, sources[0])
        parts = among_all(commands_pb2.COLLECTIVE_KIND_ALL_REDUCE, sources, targets, size, dtype, number)
        self._run(parts, size, timeout_ns)
        return targets

    def reduce(
        self,
        arrays: Sequence[A],
        root: int = 0,
        op: str = "sum",
        out: A | None = None,
        timeout: float | None = None,
    ) -> A:
        """Reduces the arrays elementwise into one array at a root.

        Args:
            arrays: One array for each device, in the group's order, all of one shape and dtype, and contiguous.
            root: Rank that gets the result.
            op: ``"sum"``, ``"mean"``, ``"min"``, ``"max"`` or ``"prod"``.
            out: Array for the result, which may be the root's of `arrays`; None: a new one.
            timeout: Seconds for all ranks to come and to finish; None: the daemon's default.

        Returns:
            The array that was written.
        """
        timeout_ns = self._begin(timeout)
        root = check_rank("root", root, len(self.devices))
        number = reduction(op)
        sources = self._operands.arrays(arrays)
        dtype, size = reducible(sources[0]), sources[0].size
        target = self._operands.out("out", out, root, sources[0].shape, sources[0])
        parts = to_root(commands_pb2.COLLECTIVE_KIND_REDUCE, sources, target, root, size, dtype, number)
        self._run(parts, size, timeout_ns)
        return target

    def broadcast(
        self,
        arrays: A | Sequence[A],
        root: int = 0,
        outs: Sequence[A] | None = None,
        timeout: float | None = None,
    ) -> list[A]:
        """Copies the array of a root to every device.

        Args:
            arrays: One for each device, overwritten with the root's unless there are `outs`; or the root's array alone.
            root: Rank whose array is copied.
            outs: Arrays for the copies; None: `arrays`, or new ones where the root's array is given alone.
            timeout: Seconds for all ranks to come and to finish; None: the daemon's default.

        Returns:
            The arrays that were written, one for each device.
        """
        timeout_ns = self._begin(timeout)
        root = check_rank("root", root, len(self.devices))
        if isinstance(arrays, Sequence):
            sources = self._operands.arrays(arrays, written=outs is None)
            source = sources[root]
            targets = sources if outs is None else self._operands.outs(outs, source.shape, source)
        else:
            source = self._operands.one("array", arrays, root)
            targets = self._operands.outs(outs, source.shape, source, {root: source})
        dtype, size = moved(source, source.size)
        parts = from_root(commands_pb2.COLLECTIVE_KIND_BROADCAST, source, targets, root, size, dtype)
        self._run(parts, size, timeout_ns)
        return targets

    def all_gather(
        self,
        arrays: Sequence[A],
        outs: Sequence[A] | None = None,
        timeout: float | None = None,
    ) -> list[A]:
        """Gives every device all arrays, stacked in the group's order: n arrays of a shape become (n, *shape).

        In place where rank r passes ``outs[r][r]``.

        Args:
            arrays: One array for each device, in the group's order, all of one shape and dtype, and contiguous.
            outs: Arrays for the results; None: new ones.
            timeout: Seconds for all ranks to come and to finish; None: the daemon's default.

        Returns:
            The arrays that were written.
        """
        timeout_ns = self._begin(timeout)
        sources = self._operands.arrays(arrays)
        targets = self._operands.outs(outs, (len(self.devices), *sources[0].shape), sources[0])
        dtype, size = moved(sources[0], sources[0].size)
        parts = among_all(commands_pb2.COLLECTIVE_KIND_ALL_GATHER, sources, targets, size, dtype)
        self._run(parts, size, timeout_ns, ordered=True)
        return targets

    def reduce_scatter(
        self,
        arrays: Sequence[A],
        op: str = "sum",
        outs: Sequence[A] | None = None,
        timeout: float | None = None,
    ) -> list[A]:
        """Reduces the arrays elementwise and gives each device its share of the result along the first dimension, which
        n divides: shape (n * k, ...) becomes (k, ...).

        In place where ``outs[r]`` is ``arrays[r][r * k : (r + 1) * k]``.

        Args:
            arrays: One array for each device, in the group's order, all of one shape and dtype, and contiguous.
            op: ``"sum"``, ``"mean"``, ``"min"``, ``"max"`` or ``"prod"``.
            outs: Arrays for the shares; None: new ones.
            timeout: Seconds for all ranks to come and to finish; None: the daemon's default.

        Returns:
            The arrays that were written.
        """
        timeout_ns = self._begin(timeout)
        number = reduction(op)
        sources = self._operands.arrays(arrays)
        shape = split("arrays[0]", sources[0], len(self.devices))
        dtype, size = reducible(sources[0]), math.prod(shape)
        targets = self._operands.outs(outs, shape, sources[0])
        parts = among_all(commands_pb2.COLLECTIVE_KIND_REDUCE_SCATTER, sources, targets, size, dtype, number)
        self._run(parts, size, timeout_ns, ordered=True)
        return targets

    def all_to_all(
        self,
        arrays: Sequence[A],
        outs: Sequence[A] | None = None,
        timeout: float | None = None,
    ) -> list[A]:
        """Gives rank r the r-th share of every array along the first dimension, which n divides, in the group's order:
        a transposition of the shares. Never in place.

        Args:
            arrays: One array for each device, in the group's order, all of one shape and dtype, and contiguous.
            outs: Arrays for the results; None: new ones.
            timeout: Seconds for all ranks to come and to finish; None: the daemon's default.

        Returns:
            The arrays that were written.
        """
        timeout_ns = self._begin(timeout)
        sources = self._operands.arrays(arrays)
        share = split("arrays[0]", sources[0], len(self.devices))
        targets = self._operands.outs(outs, sources[0].shape, sources[0])
        dtype, size = moved(sources[0], math.prod(share))
        parts = among_all(commands_pb2.COLLECTIVE_KIND_ALL_TO_ALL, sources, targets, size, dtype)
        self._run(parts, size, timeout_ns, ordered=True)
        return targets

    def gather(
        self,
        arrays: Sequence[A],
        root: int = 0,
        out: A | None = None,
        timeout: float | None = None,
    ) -> A:
        """Gives a root all arrays, stacked in the group's order: shape (n, *shape).

        In place where the root passes ``out[root]``.

        Args:
            arrays: One array for each device, in the group's order, all of one shape and dtype, and contiguous.
            root: Rank that gets them.
            out: Array for the result; None: a new one.
            timeout: Seconds for all ranks to come and to finish; None: the daemon's default.

        Returns:
            The array that was written.
        """
        timeout_ns = self._begin(timeout)
        root = check_rank("root", root, len(self.devices))
        sources = self._operands.arrays(arrays)
        target = self._operands.out("out", out, root, (len(self.devices), *sources[0].shape), sources[0])
        dtype, size = moved(sources[0], sources[0].size)
        parts = to_root(commands_pb2.COLLECTIVE_KIND_GATHER, sources, target, root, size, dtype)
        self._run(parts, size, timeout_ns, ordered=True)
        return target

    def scatter(
        self,
        array: A,
        root: int = 0,
        outs: Sequence[A] | None = None,
        timeout: float | None = None,
    ) -> list[A]:
        """Gives each device its share of a root's array along the first dimension, which n divides: shape (n * k, ...)
        becomes (k, ...).

        The reverse of `gather` as well: shape (n, *shape) goes to `outs` of `shape`. In place where ``outs[root]`` is
        ``array[root * k : (root + 1) * k]``.

        Args:
            array: The root's array, contiguous.
            root: Rank that has it.
            outs: Arrays for the shares; None: new ones.
            timeout: Seconds for all ranks to come and to finish; None: the daemon's default.

        Returns:
            The arrays that were written.
        """
        timeout_ns = self._begin(timeout)
        root = check_rank("root", root, len(self.devices))
        source = self._operands.one("array", array, root)
        shape = split("array", source, len(self.devices))
        if outs is not None and shape[0] == 1 and all(getattr(out, "shape", None) == shape[1:] for out in outs):
            shape = shape[1:]
        targets = self._operands.outs(outs, shape, source)
        dtype, size = moved(source, math.prod(shape))
        parts = from_root(commands_pb2.COLLECTIVE_KIND_SCATTER, source, targets, root, size, dtype)
        self._run(parts, size, timeout_ns, ordered=True)
        return targets

    def barrier(self, timeout: float | None = None) -> None:
        """Lets later work on each device's current stream wait, on the device, until all of them have come this far.

        Sent one way; a synchronize after it waits for it.

        Args:
            timeout: Seconds for all ranks to come and to finish; None: the daemon's default.
        """
        timeout_ns = self._begin(timeout)
        kind = commands_pb2.COLLECTIVE_KIND_BARRIER
        self._run((RankPart(rank, kind) for rank in range(len(self))), 1, timeout_ns)

    # ---- from one rank to another ----

    def send(self, array: A, to: int, timeout: float | None = None) -> None:
        """Sends an array from its device to another rank, which has to receive one of the same size and dtype.

        Between two ranks outside of a batch, the first call of one has to meet the first call of the other, and so on:
        a send its receive. The two may be called in either order and from different threads. Both ranks sending first,
        or all ranks around a ring, belongs into a `batch`.

        Args:
            array: A contiguous array on a device of the group.
            to: The receiving rank.
            timeout: Seconds for all ranks to come and to finish; None: the daemon's default.
        """
        timeout_ns = self._begin(timeout)
        source: A = check_array("array", array)
        rank, peer = self._rank_of("array", source), check_rank("to", to, len(self.devices))
        dtype, size = moved(source, source.size)
        self._run_pair(
            RankPart(rank, commands_pb2.COLLECTIVE_KIND_SEND, source, None, size, dtype, peer=peer), timeout_ns
        )

    def recv(self, array: A, source: int, timeout: float | None = None) -> A:
        """Receives into an array, on its device, what another rank sends to that device's; see `send`.

        Args:
            array: A contiguous array on a device of the group.
            source: The sending rank.
            timeout: Seconds for all ranks to come and to finish; None: the daemon's default.

        Returns:
            The array.
        """
        timeout_ns = self._begin(timeout)
        target: A = check_out("array", array)
        rank, peer = self._rank_of("array", target), check_rank("source", source, len(self.devices))
        dtype, size = moved(target, target.size)
        self._run_pair(
            RankPart(rank, commands_pb2.COLLECTIVE_KIND_RECV, None, target, size, dtype, peer=peer), timeout_ns
        )
        return target

    # ---- order, batches ----

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
        """Collects the calls of a block: ``with group.batch():`` presents them at its end as one NCCL group.

        For calls that would wait for each other otherwise (a ring of sends and receives), and for many small
        operations. Every send of the block needs its receive in it. Nothing is presented where the block, or a check,
        raises. Only the calls of this thread (or task) belong to it, on one stream of each device.

        Args:
            timeout: Seconds for all calls together; None: the daemon's default.

        Returns:
            The batch, to be entered.

        Raises:
            ArgumentError: A batch of the group is open in this thread (or task), or `timeout` is not above 0.
            ClosedError: The group is closed.
        """
        check_none_open(self)
        return Batch(self, self._connections, self._begin(timeout), self._present_batch)

    # ---- inside ----

    def _form_all(self) -> None:
        self._given = self._sorted = self._form(tuple(range(len(self.devices))))
        self._finalizer = weakref.finalize(self, _abandon, self._formed)
        self._finalizer.atexit = False  # the sessions end then, and their groups with them

    def _chosen(self, ranks: Iterable[int]) -> list[D]:
        self._check_open()
        return [self.devices[check_rank("rank", rank, len(self))] for rank in ranks]

    def _left(self, without: Iterable[Named] | Named) -> list[D]:
        gone = named(self.devices, without)
        left = [device for rank, device in enumerate(self.devices) if rank not in gone]
        if not left:
            raise ArgumentError(
                f"no device of {self!r} is left.", reason="INVALID_ARGUMENT", fix="leave one out of `without`."
            )
        return left

    def _flight_records(self) -> list[FlightRecord]:
        asked = {formed.coordinator for formed in self._formed}
        asked |= {session for session in self._sessions if not self._formed or self._sessions.count(session) > 1}
        found: list[tuple[node_pb2.GroupInfo, Mapping[int, int]]] = []
        for session in asked:
            for info in describe(session):
                ranks = self._ranks_of(session, info)
                if ranks is not None:
                    found.append((info, dict(enumerate(ranks))))
        return records(found)

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._finalizer is not None:
            self._finalizer.detach()
        for formed in list(self._formed):
            formed.leave()
            for connection in self._connections.values():
                connection.sequence.forget(formed.id)

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

    def _run(self, presented: Iterable[RankPart], size: int, timeout_ns: int, ordered: bool = False) -> None:
        if not size:
            return  # as every rank knows
        batch = opened(self)
        if batch is not None:
            batch.add(presented)
        else:
            present(self._connections, self._given if ordered else self._sorted, by_rank(presented), timeout_ns)

    def _run_pair(self, part: RankPart, timeout_ns: int) -> None:
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

    def _rank_of(self, what: str, array: A) -> int:
        for rank, device in enumerate(self.devices):
            if array._connection is device._connection:
                return rank
        raise ArgumentError(
            f"{what} is {array!r}, on no device of {self!r}.",
            reason="INVALID_ARGUMENT",
            fix="pass an array that was made on one of group.devices.",
        )

    def _present_batch(
        self, parts: Mapping[int, Sequence[RankPart]], timeout_ns: int, on: Mapping[int, BaseStream | None]
    ) -> None:
        self._check_open()
        present(self._connections, self._given, parts, timeout_ns, on)

    def _pair(self, rank: int, peer: int) -> RankOrder:
        """The ranks of a send between two ranks. Forms a group of the two over their daemons, the first time."""
        if self._sessions[rank] is self._sessions[peer]:
            return sorted_order(self._ordinals, (rank, peer))
        pair = (min(rank, peer), max(rank, peer))  # all there are, where the group has two
        with self._forming:
            order = self._orders.get(pair) or self._form(pair)
        self._check_open()
        return order

    @telemetry.traced("hearth.group", telemetry.of_group)
    def _form(self, ranks: tuple[int, ...]) -> RankOrder:
        formed = form([(self._sessions[rank], self._ordinals[rank]) for rank in ranks], self._timeout)
        self._formed.append(formed)
        self._orders[ranks] = order = RankOrder(formed.id, ranks)
        if self._closed:  # meanwhile, by another thread
            formed.leave()
        return order

    def _ranks_of(self, session: NodeSession, info: node_pb2.GroupInfo) -> tuple[int, ...] | None:
        """Our ranks, in the order of one of a session's groups; None where that has nothing to do with this group."""
        if info.group:
            coordinated = any(each.id == info.group and each.coordinator is session for each in self._formed)
            members = [order.members for order in self._orders.values() if order.name == info.group]
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
