"""Checks of the devices and members that the caller names when a group is made or rebuilt."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar

from hearth.arrays.base_array import BaseArray
from hearth.base_device import BaseDevice
from hearth.base_node import BaseNode
from hearth.collectives.operands import check_rank
from hearth.errors import ArgumentError, DtypeError

D = TypeVar("D", bound=BaseDevice[Any, Any])
Member = int | BaseDevice[Any, Any] | BaseNode[Any]


def check_devices(devices: Iterable[D], device_class: type[BaseDevice[Any, Any]]) -> list[D]:
    """Checks the devices of a new group.

    Args:
        devices: The devices in rank order.
        device_class: The class of the group's devices, of `hearth` or of `hearth.aio`.

    Returns:
        The devices as a list.

    Raises:
        ArgumentError: There are no devices, or a device is named twice.
        DtypeError: `devices` is no list, or a member is no device of this class.
    """
    if not isinstance(devices, Iterable):
        raise DtypeError(
            f"devices is {devices!r}; a group requires a list of devices.",
            fix="pass a list, e.g. Group(node.devices) or Group([gpu]).",
        )
    devices = list(devices)
    if not devices:
        raise ArgumentError(
            "a group requires at least one device.",
            fix="pass devices, e.g. Group(node.devices).",
        )
    for member in devices:
        if not isinstance(member, device_class):
            client = "hearth.aio" if device_class.__module__.startswith("hearth.aio.") else "hearth"
            raise DtypeError(
                f"{member!r} is not a device of a node from {client}.connect.",
                fix="pass devices, e.g. Group([a.device(0), b.device(0)]): hearth.Group takes devices of nodes from "
                "hearth.connect, hearth.aio.Group those from hearth.aio.connect.",
            )
    if len({device._connection for device in devices}) != len(devices):
        raise ArgumentError(
            f"a device is listed twice in {[device.ordinal for device in devices]}.",
            fix="list each device once.",
        )
    return devices


def named_ranks(devices: Sequence[D], without: Iterable[Member] | Member) -> set[int]:
    """Determines the ranks that the caller names.

    Args:
        devices: The devices of the group.
        without: Ranks, devices or whole nodes, or one of them.

    Returns:
        The ranks.

    Raises:
        ArgumentError: A named member is not in the group.
    """
    named: set[int] = set()
    for member in without if isinstance(without, Iterable) else [without]:
        if isinstance(member, BaseNode):
            session = member._session
            ranks = {rank for rank, device in enumerate(devices) if device._node._session is session}
        elif isinstance(member, BaseDevice):
            ranks = {rank for rank, device in enumerate(devices) if device._connection is member._connection}
        else:
            ranks = {check_rank("without", member, len(devices))}
        if not ranks:
            raise ArgumentError(
                f"{member!r} is not a device of the group.",
                fix="use the devices in group.devices.",
            )
        named |= ranks
    return named


def remaining(group: object, devices: Sequence[D], excluded: Collection[int]) -> list[D]:
    """Returns the devices of a group that remain without some ranks.

    Args:
        group: The group, for the error.
        devices: The devices of the group.
        excluded: The ranks, as from `named_ranks`.

    Raises:
        ArgumentError: No device remains.
    """
    devices_left = [device for rank, device in enumerate(devices) if rank not in excluded]
    if not devices_left:
        raise ArgumentError(
            f"all devices of {group!r} are excluded.",
            fix="exclude fewer devices with `without`.",
        )
    return devices_left


def rank_of(group: object, devices: Sequence[D], array: BaseArray) -> int:
    """Returns the rank on whose device an array is.

    Args:
        group: The group, for the error.
        devices: The devices of the group, in rank order.
        array: The array.

    Raises:
        ArgumentError: The array is on no device of the group.
    """
    for rank, device in enumerate(devices):
        if array._connection is device._connection:
            return rank
    raise ArgumentError(
        f"array is {array!r}, which is on no device of {group!r}.",
        fix="pass an array that is on one of group.devices.",
    )
