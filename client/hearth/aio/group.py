"""Groups of devices, for asyncio."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hearth.aio.array import DeviceArray
from hearth.aio.awaited import AsyncWith
from hearth.aio.device import Device
from hearth.collectives.base_group import BaseGroup
from hearth.collectives.group_members import named_ranks, remaining
from hearth.collectives.operands import check_rank
from hearth.errors import ArgumentError

if TYPE_CHECKING:
    from typing import Self

    from hearth.collectives.flight_recorder import FlightRecord
    from hearth.collectives.group_members import Member
    from hearth.session.collective_order import RankOrder


class Group(AsyncWith, BaseGroup[Device, DeviceArray]):
    """A `hearth.Group` for asyncio: operations are plain calls, sent one way.

    A group of one session's devices, ``Group(node.devices)``, is ready for use. A group over several sessions is
    formed when it is awaited or entered: ``group = await Group([a.device(0), b.device(0)])`` or ``async with Group(...)
    as group:``. Before two of its ranks on different daemons send to each other outside of a batch, call ``await
    group.pair(rank, peer)``.

    Args:
        devices: Devices of one or several sessions of `hearth.aio`, in rank order.
        timeout: Seconds for forming a group over several sessions; None: 30.

    Raises:
        ArgumentError: There are no devices, a device is named twice, or `timeout` is not above 0.
        DtypeError: `devices` is no list, or a member is no device of `hearth.aio`.
        HearthError: When awaited, an error that `hearth.Group` raises.
    """

    _device_class = Device

    def __init__(self, devices: Sequence[Device], *, timeout: float | None = None) -> None:
        self._unformed = False
        super().__init__(devices, timeout=timeout)
        self._home = self.devices[0]._connection.home
        for device in self.devices:
            device._connection.home.check()

    def _form_all(self) -> None:
        self._unformed = True

    # ---- calls that are awaited ----

    def __await__(self) -> Generator[Any, None, Self]:
        return self._form_now().__await__()

    async def _form_now(self) -> Self:
        if self._unformed:
            form = super()._form_all
            await self._home.call(form, undo=lambda _: self._close())
            self._unformed = False
        return self

    async def pair(self, rank: int, peer: int) -> None:
        """Prepares two ranks on different daemons to send to each other outside of a batch.

        One call for each pair is enough. Ranks of one session need no preparation.

        Args:
            rank: One of the two ranks.
            peer: The other rank.

        Raises:
            ArgumentError: `rank` or `peer` is no rank of the group, or the group has not been formed.
            ClosedError: The group is closed.
        """
        self._check_open()
        rank, peer = check_rank("rank", rank, len(self)), check_rank("peer", peer, len(self))
        if not self._formations.paired(rank, peer):
            await self._home.call(partial(super()._pair, rank, peer))

    async def subgroup(self, ranks: Iterable[int]) -> Group:
        """Makes a group of some of the devices. Returns when the group is formed.

        Args:
            ranks: Ranks of this group, in the order of the new group.

        Returns:
            The new group; this group remains usable.

        Raises:
            ArgumentError: `ranks` is no list, or a rank is not in this group or named twice.
            ClosedError: The group is closed.
        """
        return await Group(self._devices_of(ranks), timeout=self._timeout)

    async def rebuild(self, without: Iterable[Member] | Member = ()) -> Group:
        """Makes a new group without lost members, in the same order, and closes this one.

        To be called after a `CommunicatorError`. The nodes in `without` are not waited for, so they may be unreachable.

        Args:
            without: Members to leave out: ranks, devices or whole nodes.

        Returns:
            The new group.

        Raises:
            HearthError: An error that the `Group` constructor raises; this group then stays as it is.
        """
        lost = named_ranks(self.devices, without)
        group = await Group(remaining(self, self.devices, lost), timeout=self._timeout)
        await self._close_now(lost)
        return group

    async def flight_recorder(self) -> list[FlightRecord]:
        """Returns the group's last operations: see `hearth.Group.flight_recorder`."""
        return await self._home.call(self._flight_records)

    async def close(self) -> None:
        """Closes the group: see `hearth.Group.close`.

        If the await is cancelled, the close continues in the background.
        """
        await self._close_now()

    async def _close_now(self, lost: Collection[int] = ()) -> None:
        self._home.check()
        closing = self._home.calls.run(partial(self._close, lost))
        await self._home.wait_done(closing)
        closing.result()

    async def __aenter__(self) -> Self:
        return await self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- internals ----

    def __repr__(self) -> str:
        if self._unformed:
            return f"<hearth.aio.Group of {len(self.devices)} devices, not formed>"
        return super().__repr__()

    def _check_open(self) -> None:
        if self._unformed and not self._closed:
            raise ArgumentError(
                "this group over several sessions has not been formed.",
                fix="use group = await hearth.aio.Group(devices), or async with.",
            )
        super()._check_open()

    def _pair(self, rank: int, peer: int) -> RankOrder:
        if not self._formations.paired(rank, peer):
            raise ArgumentError(
                f"ranks {rank} and {peer} are on different daemons that are not connected to each other yet.",
                fix=f"call await group.pair({rank}, {peer}) first, or send and receive in one group.batch().",
            )
        return super()._pair(rank, peer)
