"""Abstract groups of devices, of one node or of several, and their collective operations, with NCCL's names.

Covers everything that `hearth.Group` and `hearth.aio.Group` have in common: membership, ranks, and commands that are
sent one way. Does not cover calls that wait; each of the two group classes has its own.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from hearth import base_stream as streams
from hearth.arrays.base_array import BaseArray
from hearth.arrays.device_copy import wire_elements
from hearth.base_device import BaseDevice
from hearth.codec import timeouts
from hearth.collectives.batch import Batch, check_none_open, open_batch
from hearth.collectives.commands import PairNumbers, present
from hearth.collectives.flight_recorder import FlightRecord, records
from hearth.collectives.formations import Formations, abandon
from hearth.collectives.group_members import check_devices, rank_of
from hearth.collectives.operands import Operands, check_array, check_out, check_rank, share_shape
from hearth.collectives.part import RankPart, at_root, by_rank, parts_of_ranks
from hearth.collectives.reduction import PremulSum, Reduction, reduction
from hearth.collectives.rendezvous import describe
from hearth.errors import ArgumentError, ClosedError
from hearth.session.collective_order import RankOrder, in_order, sorted_order
from hearth_proto.v1 import commands_pb2, node_pb2

if TYPE_CHECKING:
    from hearth.base_stream import BaseStream
    from hearth.session.lease import NodeSession

TIMEOUT_S = 30.0
D = TypeVar("D", bound=BaseDevice[Any, Any])
"""The class of the group's devices."""
A = TypeVar("A", bound=BaseArray)
"""The class of the devices' arrays."""


class BaseGroup(Generic[D, A]):
    """Abstract group of devices, in which every rank takes part in collective operations.

    `hearth.Group` documents the rules of all operations: order, errors, and `arrays`, `outs` and `timeout`.
    """

    _device_class: ClassVar[type[BaseDevice[Any, Any]]]

    def __init__(self, devices: Sequence[D], *, timeout: float | None = None) -> None:
        self.devices: list[D] = check_devices(devices, self._device_class)
        self._operands: Operands[A] = Operands(self.devices)
        timeouts.nanoseconds(timeout)
        self._timeout = TIMEOUT_S if timeout is None else timeout
        self._closed = False
        self._connections = {rank: device._connection for rank, device in enumerate(self.devices)}
        self._sessions = [device._node._session for device in self.devices]
        self._premultiplies = all(session.limits.premultiplies for session in self._sessions)
        ordinals = [device.ordinal for device in self.devices]
        self._ordinals = ordinals
        self._pair_numbers = PairNumbers()
        self._formations = Formations(self._sessions, ordinals, self._timeout)
        self._finalizer: weakref.finalize[..., BaseGroup[D, A]] | None = None
        if len(set(self._sessions)) == 1:
            self._given_order, self._sorted_order = in_order(ordinals), sorted_order(ordinals)
        else:
            self._form_all()

    # ---- attributes ----

    def __len__(self) -> int:
        """The number of ranks."""
        return len(self.devices)

    @property
    def id(self) -> str:
        """The group's id in the daemons' logs; empty for a group of one session."""
        formed = self._formations.formed
        return formed[0].id.hex() if formed else ""

    @property
    def closed(self) -> bool:
        """True once the group has been closed."""
        return self._closed

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        if isinstance(self._given_order.name, tuple):
            return f"<hearth.Group of devices {self._ordinals}{closed}>"
        listed = ", ".join(f"{device.node.name}/{device.ordinal}" for device in self.devices)
        return f"<hearth.Group {self.id[:8]} of {listed}{closed}>"

    # ---- operations of all ranks ----

    def all_reduce(
        self,
        arrays: Sequence[A],
        op: str | PremulSum = "sum",
        outs: Sequence[A] | None = None,
        timeout: float | None = None,
    ) -> list[A]:
        """Reduces the arrays elementwise, and stores the result on each device: in place, or in `outs`.

        Args:
            arrays: One array for each device, in the group's order, all contiguous and of one shape and dtype.
            op: ``"sum"``, ``"mean"``, ``"min"``, ``"max"``, ``"prod"`` or `hearth.premul_sum`.
            outs: Arrays for the results, which may be `arrays`; None: in place.
            timeout: Seconds until all ranks have arrived and finished; None: the daemon's default.

        Returns:
            The arrays that were written.

        Raises:
            ArgumentError: Shapes, dtypes, devices or `op` do not match.
            DtypeError: An argument is no device array, or its dtype cannot be reduced.
            ClosedError: The group is closed.
        """
        timeout_ns = self._begin(timeout)
        sources = self._operands.arrays(arrays, written=range(len(self)) if outs is None else ())
        reducer, size = self._reduction(op, sources, sources[0].size)
        targets = sources if outs is None else self._operands.outs(outs, sources[0].shape, sources[0])
        kind = commands_pb2.COLLECTIVE_KIND_ALL_REDUCE
        parts = parts_of_ranks(kind, sources, targets, size, reducer.dtype, reducer)
        self._run(parts, size, timeout_ns)
        return targets

    def reduce(
        self,
        arrays: Sequence[A],
        root: int = 0,
        op: str | PremulSum = "sum",
        out: A | None = None,
        timeout: float | None = None,
    ) -> A:
        """Reduces the arrays elementwise, and stores the result on the root's device.

        Args:
            arrays: One array for each device, in the group's order, all contiguous and of one shape and dtype.
            root: Rank that receives the result.
            op: ``"sum"``, ``"mean"``, ``"min"``, ``"max"``, ``"prod"`` or `hearth.premul_sum`.
            out: Array for the result, which may be the root's array in `arrays`; None: a new one.
            timeout: Seconds until all ranks have arrived and finished; None: the daemon's default.

        Returns:
            The array that was written.

        Raises:
            ArgumentError: Shapes, dtypes, devices, `root` or `op` do not match.
            DtypeError: An argument is no device array, or its dtype cannot be reduced.
            ClosedError: The group is closed.
        """
        timeout_ns = self._begin(timeout)
        root = check_rank("root", root, len(self.devices))
        sources = self._operands.arrays(arrays)
        reducer, size = self._reduction(op, sources, sources[0].size)
        target = self._operands.out("out", out, root, sources[0].shape, sources[0])
        kind, targets = commands_pb2.COLLECTIVE_KIND_REDUCE, at_root(target, root, len(self))
        parts = parts_of_ranks(kind, sources, targets, size, reducer.dtype, reducer, root)
        self._run(parts, size, timeout_ns)
        return target

    def broadcast(
        self,
        arrays: A | Sequence[A],
        root: int = 0,
        outs: Sequence[A] | None = None,
        timeout: float | None = None,
    ) -> list[A]:
        """Copies the root's array to every device.

        Args:
            arrays: One array for each device, overwritten with the root's array unless `outs` is given; or the root's
                array alone. The root's array is only read, so it may be published or attached.
            root: Rank whose array is copied.
            outs: Arrays for the copies; None: `arrays`, or the root's array and new ones on the other devices if only
                the root's array is given.
            timeout: Seconds until all ranks have arrived and finished; None: the daemon's default.

        Returns:
            The arrays that were written, one for each device.

        Raises:
            ArgumentError: Shapes, dtypes, devices or `root` do not match.
            DtypeError: An argument is no device array.
            ClosedError: The group is closed.
        """
        timeout_ns = self._begin(timeout)
        root = check_rank("root", root, len(self.devices))
        if isinstance(arrays, Sequence):
            written = set(range(len(self))) - {root} if outs is None else ()
            sources = self._operands.arrays(arrays, written=written)
            source = sources[root]
            targets = sources if outs is None else self._operands.outs(outs, source.shape, source)
        else:
            source = self._operands.single("array", arrays, root)
            targets = self._operands.outs(outs, source.shape, source, {root: source})
        dtype, size = wire_elements(source, source.size)
        kind, sent = commands_pb2.COLLECTIVE_KIND_BROADCAST, at_root(source, root, len(self))
        parts = parts_of_ranks(kind, sent, targets, size, dtype, root=root)
        self._run(parts, size, timeout_ns)
        return targets

    def all_gather(
        self,
        arrays: Sequence[A],
        outs: Sequence[A] | None = None,
        timeout: float | None = None,
    ) -> list[A]:
        """Stores all arrays on every device, stacked in the group's order.

        n arrays of a shape become one of (n, *shape). In place if rank r passes ``outs[r][r]`` as its array.

        Args:
            arrays: One array for each device, in the group's order, all contiguous and of one shape and dtype.
            outs: Arrays for the results; None: new ones.
            timeout: Seconds until all ranks have arrived and finished; None: the daemon's default.

        Returns:
            The arrays that were written.

        Raises:
            ArgumentError: Shapes, dtypes or devices do not match.
            DtypeError: An argument is no device array.
            ClosedError: The group is closed.
        """
        timeout_ns = self._begin(timeout)
        sources = self._operands.arrays(arrays)
        targets = self._operands.outs(outs, (len(self.devices), *sources[0].shape), sources[0])
        dtype, size = wire_elements(sources[0], sources[0].size)
        parts = parts_of_ranks(commands_pb2.COLLECTIVE_KIND_ALL_GATHER, sources, targets, size, dtype)
        self._run(parts, size, timeout_ns, ordered=True)
        return targets

    def reduce_scatter(
        self,
        arrays: Sequence[A],
        op: str | PremulSum = "sum",
        outs: Sequence[A] | None = None,
        timeout: float | None = None,
    ) -> list[A]:
        """Reduces the arrays elementwise, and stores on each device its share of the result.

        The result is divided along the first dimension, which must be divisible by the number of ranks n: shape
        (n * k, ...) becomes (k, ...). In place if ``outs[r]`` is ``arrays[r][r * k : (r + 1) * k]``.

        Args:
            arrays: One array for each device, in the group's order, all contiguous and of one shape and dtype.
            op: ``"sum"``, ``"mean"``, ``"min"``, ``"max"``, ``"prod"`` or `hearth.premul_sum`.
            outs: Arrays for the shares; None: new ones.
            timeout: Seconds until all ranks have arrived and finished; None: the daemon's default.

        Returns:
            The arrays that were written.

        Raises:
            ArgumentError: Shapes, dtypes, devices or `op` do not match.
            DtypeError: An argument is no device array, or its dtype cannot be reduced.
            ClosedError: The group is closed.
        """
        timeout_ns = self._begin(timeout)
        sources = self._operands.arrays(arrays)
        shape = share_shape("arrays[0]", sources[0], len(self.devices))
        reducer, size = self._reduction(op, sources, math.prod(shape))
        targets = self._operands.outs(outs, shape, sources[0])
        kind = commands_pb2.COLLECTIVE_KIND_REDUCE_SCATTER
        parts = parts_of_ranks(kind, sources, targets, size, reducer.dtype, reducer)
        self._run(parts, size, timeout_ns, ordered=True)
        return targets

    def all_to_all(
        self,
        arrays: Sequence[A],
        outs: Sequence[A] | None = None,
        timeout: float | None = None,
    ) -> list[A]:
        """Stores on rank r the r-th share of every array, in the group's order: a transposition of the shares.

        The shares are taken along the first dimension, which must be divisible by the number of ranks. Never in place.

        Args:
            arrays: One array for each device, in the group's order, all contiguous and of one shape and dtype.
            outs: Arrays for the results; None: new ones.
            timeout: Seconds until all ranks have arrived and finished; None: the daemon's default.

        Returns:
            The arrays that were written.

        Raises:
            ArgumentError: Shapes, dtypes or devices do not match.
            DtypeError: An argument is no device array.
            ClosedError: The group is closed.
        """
        timeout_ns = self._begin(timeout)
        sources = self._operands.arrays(arrays)
        share = share_shape("arrays[0]", sources[0], len(self.devices))
        targets = self._operands.outs(outs, sources[0].shape, sources[0])
        dtype, size = wire_elements(sources[0], math.prod(share))
        parts = parts_of_ranks(commands_pb2.COLLECTIVE_KIND_ALL_TO_ALL, sources, targets, size, dtype)
        self._run(parts, size, timeout_ns, ordered=True)
        return targets

    def gather(
        self,
        arrays: Sequence[A],
        root: int = 0,
        out: A | None = None,
        timeout: float | None = None,
    ) -> A:
        """Stores all arrays on the root's device, stacked in the group's order.

        n arrays of a shape become one of (n, *shape). In place if the root passes ``out[root]`` as its array.

        Args:
            arrays: One array for each device, in the group's order, all contiguous and of one shape and dtype.
            root: Rank that receives the arrays.
            out: Array for the result; None: a new one.
            timeout: Seconds until all ranks have arrived and finished; None: the daemon's default.

        Returns:
            The array that was written.

        Raises:
            ArgumentError: Shapes, dtypes, devices or `root` do not match.
            DtypeError: An argument is no device array.
            ClosedError: The group is closed.
        """
        timeout_ns = self._begin(timeout)
        root = check_rank("root", root, len(self.devices))
        sources = self._operands.arrays(arrays)
        target = self._operands.out("out", out, root, (len(self.devices), *sources[0].shape), sources[0])
        dtype, size = wire_elements(sources[0], sources[0].size)
        kind, targets = commands_pb2.COLLECTIVE_KIND_GATHER, at_root(target, root, len(self))
        parts = parts_of_ranks(kind, sources, targets, size, dtype, root=root)
        self._run(parts, size, timeout_ns, ordered=True)
        return target

    def scatter(
        self,
        array: A,
        root: int = 0,
        outs: Sequence[A] | None = None,
        timeout: float | None = None,
    ) -> list[A]:
        """Stores on each device its share of the root's array along the first dimension.

        That dimension must be divisible by the number of ranks n: shape (n * k, ...) becomes (k, ...). Also the reverse
        of `gather`: an array of shape (n, *shape) can be scattered to `outs` of `shape`. In place if ``outs[root]`` is
        ``array[root * k : (root + 1) * k]``.

        Args:
            array: The root's array, contiguous.
            root: Rank that has the array.
            outs: Arrays for the shares; None: new ones.
            timeout: Seconds until all ranks have arrived and finished; None: the daemon's default.

        Returns:
            The arrays that were written.

        Raises:
            ArgumentError: Shapes, dtypes, devices or `root` do not match.
            DtypeError: An argument is no device array.
            ClosedError: The group is closed.
        """
        timeout_ns = self._begin(timeout)
        root = check_rank("root", root, len(self.devices))
        source = self._operands.single("array", array, root)
        shape = share_shape("array", source, len(self.devices))
        if outs is not None and shape[0] == 1 and all(getattr(out, "shape", None) == shape[1:] for out in outs):
            shape = shape[1:]
        targets = self._operands.outs(outs, shape, source)
        dtype, size = wire_elements(source, math.prod(shape))
        kind, sent = commands_pb2.COLLECTIVE_KIND_SCATTER, at_root(source, root, len(self))
        parts = parts_of_ranks(kind, sent, targets, size, dtype, root=root)
        self._run(parts, size, timeout_ns, ordered=True)
        return targets

    def barrier(self, timeout: float | None = None) -> None:
        """Makes later work on each device's current stream wait until all ranks have reached the barrier.

        Sent one way: the work waits on the device. A later synchronize waits for the barrier.

        Args:
            timeout: Seconds until all ranks have arrived and finished; None: the daemon's default.

        Raises:
            ArgumentError: `timeout` is not above 0, or is given inside a batch.
            ClosedError: The group is closed.
        """
        timeout_ns = self._begin(timeout)
        kind = commands_pb2.COLLECTIVE_KIND_BARRIER
        self._run((RankPart(rank, kind) for rank in range(len(self))), 1, timeout_ns)

    # ---- from one rank to another ----

    def send(self, array: A, to: int, timeout: float | None = None) -> None:
        """Sends an array from its device to another rank, which must receive an array of the same size and dtype.

        Outside of a batch, the sends from one rank to another are matched with its receives in their order: the first
        send with the first receive, and so on; each send must meet a receive of the same `Group` object. The two calls
        may be made in either order, from different threads, and with other operations in between. If both ranks send
        first on one stream, or all ranks send around a ring, the calls must be in one `batch`. A send that failed
        because it met no receive is matched with the next receive, which fails, too; sends of a new group are not.

        Args:
            array: A contiguous array on a device of the group.
            to: The receiving rank.
            timeout: Seconds until both ranks have arrived and finished; None: the daemon's default.

        Raises:
            ArgumentError: The array is on no device of the group, or `to` is no rank of the group, or is the array's
                own rank outside of a batch.
            DtypeError: `array` is no device array.
            ClosedError: The group is closed.
        """
        timeout_ns = self._begin(timeout)
        source: A = check_array("array", array)
        rank, peer = rank_of(self, self.devices, source), check_rank("to", to, len(self.devices))
        dtype, size = wire_elements(source, source.size)
        self._run_pair(
            RankPart(rank, commands_pb2.COLLECTIVE_KIND_SEND, source, None, size, dtype, peer=peer), timeout_ns
        )

    def recv(self, array: A, source: int, timeout: float | None = None) -> A:
        """Receives an array that another rank sends to the device of `array`; see `send`.

        Args:
            array: A contiguous array on a device of the group, which is overwritten.
            source: The sending rank.
            timeout: Seconds until both ranks have arrived and finished; None: the daemon's default.

        Returns:
            The array.

        Raises:
            ArgumentError: The array is on no device of the group or read-only, or `source` is no rank of the group, or
                is the array's own rank outside of a batch.
            DtypeError: `array` is no device array.
            ClosedError: The group is closed.
        """
        timeout_ns = self._begin(timeout)
        target: A = check_out("array", array)
        rank, peer = rank_of(self, self.devices, target), check_rank("source", source, len(self.devices))
        dtype, size = wire_elements(target, target.size)
        self._run_pair(
            RankPart(rank, commands_pb2.COLLECTIVE_KIND_RECV, None, target, size, dtype, peer=peer), timeout_ns
        )
        return target

    # ---- order, batches ----

    def synchronize(self) -> None:
        """Makes later work on each device's current stream wait, on the device, for all collectives submitted so far.

        Sent one way.
        """
        self._check_open()
        for connection in self._connections.values():
            attachment = connection.attachment()
            command = commands_pb2.Command(
                stream=streams.resolve(None, connection, attachment), sync_collective=commands_pb2.SyncCollective()
            )
            attachment.submit(command)

    def batch(self, timeout: float | None = None) -> Batch:
        """Collects the calls of a block: at the end of ``with group.batch():`` they are submitted as one NCCL group.

        Use it for calls that would otherwise wait for each other (a ring of sends and receives), and for many small
        operations. Every send in the block needs its receive in the block. If the block or a check raises, no operation
        is submitted. Only the calls of this thread (or task) belong to the batch, and they use one stream of each
        device.

        Args:
            timeout: Seconds for all calls together; None: the daemon's default.

        Returns:
            The batch, to be entered by ``with``.

        Raises:
            ArgumentError: A batch of the group is open in this thread (or task), or `timeout` is not above 0.
            ClosedError: The group is closed.
        """
        check_none_open(self)
        return Batch(self, self._connections, self._begin(timeout), self._present_batch)

    # ---- internals ----

    def _form_all(self) -> None:
        self._given_order = self._sorted_order = self._formations.form(tuple(range(len(self.devices))))
        self._finalizer = weakref.finalize(self, abandon, self._formations)
        self._finalizer.atexit = False  # at exit the sessions end, and so do their groups

    def _devices_of(self, ranks: Iterable[int]) -> list[D]:
        self._check_open()
        if not isinstance(ranks, Iterable):
            raise ArgumentError(
                f"ranks is {ranks!r}; a subgroup requires a list of ranks.",
                fix="pass a list of indices into group.devices, e.g. [0, 1].",
            )
        return [self.devices[check_rank("rank", rank, len(self))] for rank in ranks]

    def _flight_records(self) -> list[FlightRecord]:
        formed = self._formations.formed
        sessions = {formed_group.coordinator for formed_group in formed}
        sessions |= {session for session in self._sessions if not formed or self._sessions.count(session) > 1}
        groups: list[tuple[node_pb2.GroupInfo, Mapping[int, int]]] = []
        for session in sessions:
            for info in describe(session):
                ranks = self._ranks_of(session, info)
                if ranks is not None:
                    groups.append((info, dict(enumerate(ranks))))
        return records(groups)

    def _close(self, lost: Collection[int] = ()) -> None:
        """Closes the group. Does not wait for the ranks in `lost`, which may be unreachable."""
        if self._closed:
            return
        self._closed = True
        if self._finalizer is not None:
            self._finalizer.detach()
        for id in self._formations.leave(lost):
            for connection in self._connections.values():
                connection.sequence.forget(id)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self!r} is closed.", fix="create another group: hearth.Group(devices).")

    def _begin(self, timeout: float | None) -> int:
        self._check_open()
        if timeout is not None and open_batch(self) is not None:
            raise ArgumentError(
                f"timeout is {timeout} s for an operation inside a batch, which has one timeout for all "
                "its operations.",
                fix="pass it to the batch: with group.batch(timeout=...).",
            )
        return timeouts.nanoseconds(timeout)

    def _reduction(self, op: str | PremulSum, arrays: Sequence[A], size: int) -> tuple[Reduction, int]:
        """Returns the reduction of the arrays, and NCCL's count for `size` elements."""
        result = reduction(op, arrays[0], len(self.devices), self._premultiplies)
        return result, size * result.components

    def _run(self, parts: Iterable[RankPart], size: int, timeout_ns: int, ordered: bool = False) -> None:
        if not size:
            return  # every rank skips an empty operation
        batch = open_batch(self)
        if batch is not None:
            batch.add(parts)
        else:
            order = self._given_order if ordered else self._sorted_order
            present(
                self._connections, order, by_rank(parts), timeout_ns, last_operations=self._formations.last_operations
            )

    def _run_pair(self, part: RankPart, timeout_ns: int) -> None:
        assert part.peer is not None
        batch = open_batch(self)
        if batch is not None:
            batch.add([part])
            return
        if part.peer == part.rank:
            raise ArgumentError(
                f"rank {part.rank} sends to or receives from itself outside a batch, and would block forever.",
                fix="send and receive in one group.batch(), or use y.copy_from(x).",
            )
        order = self._pair(part.rank, part.peer)
        last_operations = self._formations.last_operations
        present(self._connections, order, {part.rank: [part]}, timeout_ns, None, last_operations, self._pair_numbers)

    def _present_batch(
        self, parts: Mapping[int, Sequence[RankPart]], timeout_ns: int, on: Mapping[int, BaseStream | None]
    ) -> None:
        self._check_open()
        present(self._connections, self._given_order, parts, timeout_ns, on, self._formations.last_operations)

    def _pair(self, rank: int, peer: int) -> RankOrder:
        """Returns the rank order of a send between two ranks.

        The first time, forms a group of the two over their daemons, which blocks.
        """
        order = self._formations.pair(rank, peer)
        self._check_open()
        return order

    def _ranks_of(self, session: NodeSession, info: node_pb2.GroupInfo) -> tuple[int, ...] | None:
        """Returns the ranks here of the members of `info`, a group of a session; None if it is unrelated."""
        if info.group:
            return self._formations.members(info.group, session)
        name = tuple(member.device for member in info.members)
        ranks = {self._ordinals[rank]: rank for rank in range(len(self)) if self._sessions[rank] is session}
        if not all(ordinal in ranks for ordinal in name):
            return None
        is_own = name in (self._given_order.name, self._sorted_order.name) or len(name) == 2
        return tuple(ranks[ordinal] for ordinal in name) if is_own else None
