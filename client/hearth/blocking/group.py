"""Groups of devices whose calls that wait block the calling thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hearth.blocking.array import DeviceArray
from hearth.blocking.device import Device
from hearth.collectives.base_group import BaseGroup

if TYPE_CHECKING:
    from types import TracebackType

    from hearth.collectives.flight_recorder import FlightRecord
    from hearth.collectives.group_members import Named


class Group(BaseGroup[Device, DeviceArray]):
    """Devices that compute collectives together: ``Group(node.devices)``, or ``Group([a.device(0), b.device(0)])``
    where `a` and `b` are connections to two daemons, or to one. One device is a group as well.

    A device's rank is its place in the list. Groups of one session's devices cost nothing to make; those over several
    sessions are formed here, by all their daemons (the first device's coordinates), and are given up by `close`, at the
    end of ``with``, or when collected.

    Operations are sent one way, each device's part on its current stream: a part begins once the work before it on the
    stream is done and all ranks have come to it; later work on the arrays waits for it. What goes wrong there
    (`CommunicatorError`, `BufferLostError`) surfaces at a sync, and reading what was to be written raises it as well.

    `arrays` has one array for each device, in the group's order, all of one shape and dtype, and contiguous; so has
    `outs`, which may be the same arrays where it says so. What is written is returned. `timeout`, in seconds, is for
    all ranks to be there and to finish; None: the daemon's default. Reductions take NCCL's dtypes (integers, float16
    to float64, and of ml_dtypes bfloat16 and the float8 that the device has), the others every dtype. All raise
    `ArgumentError` and `DtypeError` where shapes, dtypes, ranks or devices do not fit, `ClosedError` once the group is
    closed, and then nothing was sent.

    Args:
        devices: Devices of one or several sessions, in rank order.
        timeout: Seconds for forming a group over several sessions; None: 30.

    Raises:
        ArgumentError: There are no devices, or one is named twice, or `timeout` is not above 0.
        DtypeError: A member is no device.
        TimeoutError: The group is not formed in time.
        HearthError: A daemon refuses to form it, as an `AuthenticationError`, `ConnectError` or `CommunicatorError`;
            ``details["node"]`` names the daemon.
    """

    def subgroup(self, ranks: Iterable[int]) -> Group:
        """Makes a group of some of the devices. Blocks where it is formed anew, over daemons.

        Args:
            ranks: Ranks of this group, in the order of the new one.

        Returns:
            The new group; this one stays usable.

        Raises:
            ArgumentError: A rank is not in this group, or is named twice.
            ClosedError: The group is closed.
        """
        return Group(self._chosen(ranks), timeout=self._timeout)

    def rebuild(self, without: Iterable[Named] | Named = ()) -> Group:
        """Makes the group anew without lost members, in the same order, and closes this one. Blocks where it is formed
        over daemons.

        To be called after a `CommunicatorError`. No request is sent to a node that is named, so that it may be gone.

        Args:
            without: Members to leave out: ranks, devices or whole nodes.

        Returns:
            The new group.

        Raises:
            HearthError: As `Group` raises; this group stays as it is.
        """
        fresh = Group(self._left(without), timeout=self._timeout)
        self.close()
        return fresh

    def flight_recorder(self) -> list[FlightRecord]:
        """Returns the group's last operations as its daemon (the first device's) has them, the newest last; bounded.
        Blocks.

        Groups of one session that have the same devices share it.

        Raises:
            ConnectError: That daemon is gone.
        """
        return self._flight_records()

    def close(self) -> None:
        """Closes the group: no more operations can be presented, and those under way fail where it is over daemons.

        Blocks some seconds at most. A second call does nothing.
        """
        self._close()

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
