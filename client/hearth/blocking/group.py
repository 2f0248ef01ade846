"""Groups of devices: operations are sent one way, other calls block the calling thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hearth.blocking.array import DeviceArray
from hearth.blocking.device import Device
from hearth.collectives.base_group import BaseGroup
from hearth.collectives.group_members import named_ranks, remaining

if TYPE_CHECKING:
    from hearth.collectives.flight_recorder import FlightRecord
    from hearth.collectives.group_members import Member


class Group(BaseGroup[Device, DeviceArray]):
    """Devices that compute collectives together: ``Group(node.devices)``.

    The devices may belong to several sessions, on one daemon or on several: ``Group([a.device(0), b.device(0)])`` with
    nodes `a` and `b`. A group may consist of a single device.

    A device's rank is its position in the list. A group of devices of one session is made without any request. A group
    over several sessions is formed in the constructor by all their daemons, of which the first device's daemon
    coordinates; it ends with `close`, at the end of ``with``, or when it is garbage-collected, after its operations are
    done.

    Operations are sent one way, each device's part on its current stream. A part starts after the earlier work on the
    stream is done and all ranks have reached the operation; later work on the arrays waits for it. Errors of an
    operation (`CommunicatorError`, `BufferLostError`) are raised by the next sync, and by reading an array that the
    operation was to write. Only the first `send` or `recv` between two ranks of different sessions outside of a batch
    blocks, while their daemons connect.

    `arrays` has one array for each device, in the group's order, all contiguous and of one shape and dtype; the same
    applies to `outs`, which may be the same arrays if the operation's documentation says so. Operations return the
    arrays that they write. `timeout`, in seconds above 0, limits the time until all ranks have arrived and finished;
    None: the daemon's default; a batch has one `timeout` for all its operations. Reductions support NCCL's dtypes
    (integers, float16 to float64, and of ml_dtypes bfloat16 and the float8 types that the device has), and sums also
    complex numbers; other operations support every dtype. All operations raise `ArgumentError` or `DtypeError` if
    shapes, dtypes, ranks or devices do not match, `LaunchError` if a stream is being recorded in a graph, and
    `ClosedError` after the group is closed; in these cases no command is sent.

    Args:
        devices: Devices of one or several sessions, in rank order.
        timeout: Seconds for forming a group over several sessions; None: 30.

    Raises:
        ArgumentError: There are no devices, a device is named twice, or `timeout` is not above 0.
        DtypeError: `devices` is no list, or a member is no device of `hearth`.
        TimeoutError: The group is not formed in time.
        HearthError: A daemon refuses to form the group, as an `AuthenticationError`, `ConnectError` or
            `CommunicatorError`; ``details["node"]`` names the daemon.
    """

    _device_class = Device

    def subgroup(self, ranks: Iterable[int]) -> Group:
        """Makes a group of some of the devices. Blocks until the group is formed, if it is over several sessions.

        Args:
            ranks: Ranks of this group, in the order of the new group.

        Returns:
            The new group; this group remains usable.

        Raises:
            ArgumentError: `ranks` is no list, or a rank is not in this group or named twice.
            ClosedError: The group is closed.
        """
        return Group(self._devices_of(ranks), timeout=self._timeout)

    def rebuild(self, without: Iterable[Member] | Member = ()) -> Group:
        """Makes a new group without lost members, in the same order, and closes this one.

        Blocks until the new group is formed, if it is over several sessions.

        To be called after a `CommunicatorError`. The nodes in `without` are not waited for, so they may be unreachable.

        Args:
            without: Members to leave out: ranks, devices or whole nodes.

        Returns:
            The new group.

        Raises:
            HearthError: An error that the `Group` constructor raises; this group then stays as it is.
        """
        lost = named_ranks(self.devices, without)
        group = Group(remaining(self, self.devices, lost), timeout=self._timeout)
        self._close(lost)
        return group

    def flight_recorder(self) -> list[FlightRecord]:
        """Returns the group's last operations, oldest first, as its daemons recorded them.

        Blocks for one request to each daemon that coordinates the group or a send between two of its ranks, or that
        has several of its devices. The number of operations is bounded. Groups of one session that have the same
        devices share one record.

        Raises:
            ConnectError: One of these daemons is unreachable.
        """
        return self._flight_records()

    def close(self) -> None:
        """Closes the group, to which no more operations can be submitted then. Blocks for a few seconds at most.

        Operations in progress are completed; a group over several sessions is left in the background when they are
        done. A second call does nothing.
        """
        self._close()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
