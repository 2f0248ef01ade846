"""Arguments of collectives, checked before any command is sent."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from hearth.arrays.allocation import allocate
from hearth.arrays.base_array import BaseArray
from hearth.arrays.read_only import ReadOnly
from hearth.errors import ArgumentError, DtypeError

if TYPE_CHECKING:
    from hearth.base_device import BaseDevice


A = TypeVar("A", bound=BaseArray)


class Operands(Generic[A]):
    """Checks the arrays of a group's operation, one for each device, and allocates those that the caller omits."""

    def __init__(self, devices: Sequence[BaseDevice[A, Any]]) -> None:
        self._devices = devices

    def arrays(self, arrays: Sequence[A], *, written: Collection[int] = ()) -> list[A]:
        """Checks one array for each rank, all of one shape and dtype.

        Args:
            arrays: The arrays in rank order.
            written: Ranks to whose arrays the operation writes.

        Returns:
            The arrays.

        Raises:
            ArgumentError: The number, a device, a shape or a dtype does not match, or an array cannot be used.
            DtypeError: An argument is no device array.
        """
        entries = self._list("arrays", arrays)
        checked: list[A] = []
        for rank, array in enumerate(entries):
            name, check = f"arrays[{rank}]", check_out if rank in written else check_array
            checked.append(self._check_on_rank(name, check(name, array), rank))
            check_like(name, checked[rank], checked[0].shape, checked[0].dtype, "rank 0 has")
        return checked

    def outs(
        self,
        outs: Sequence[A] | None,
        shape: tuple[int, ...],
        like: A,
        existing: dict[int, A] | None = None,
    ) -> list[A]:
        """Determines one destination for each rank.

        Args:
            outs: The caller's arrays; None: the arrays in `existing`, and new ones.
            shape: Shape of each destination.
            like: Array of the same dtype.
            existing: Destinations by rank that need not be allocated.

        Returns:
            The destinations in rank order.

        Raises:
            ArgumentError: The number, a device, a shape or a dtype does not match, or an array cannot be used.
            DtypeError: An argument is no device array.
        """
        if outs is not None:
            entries = self._list("outs", outs)
            return [self.out(f"outs[{rank}]", out, rank, shape, like) for rank, out in enumerate(entries)]
        existing = existing or {}
        return [
            existing[rank] if rank in existing else allocate(device, shape, like.dtype)
            for rank, device in enumerate(self._devices)
        ]

    def out(self, name: str, out: A | None, rank: int, shape: tuple[int, ...], like: A) -> A:
        """Determines the destination of one rank.

        Args:
            name: Name of the argument, for errors.
            out: The caller's array; None: a new one.
            rank: The rank.
            shape: Shape of the destination.
            like: Array of the same dtype.

        Returns:
            The destination.

        Raises:
            ArgumentError: The device, the shape or the dtype does not match, or the array cannot be used.
            DtypeError: `out` is no device array.
        """
        if out is None:
            return allocate(self._devices[rank], shape, like.dtype)
        target = self._check_on_rank(name, check_out(name, out), rank)
        check_like(name, target, shape, like.dtype, "it must be")
        return target

    def single(self, name: str, array: Any, rank: int) -> A:
        """Checks one rank's array that is read.

        Args:
            name: Name of the argument, for errors.
            array: The array.
            rank: The rank.

        Returns:
            The array.

        Raises:
            ArgumentError: The array is not on the rank's device, or cannot be used.
            DtypeError: `array` is no device array.
        """
        return self._check_on_rank(name, check_array(name, array), rank)

    def _check_on_rank(self, name: str, array: Any, rank: int) -> A:
        device = self._devices[rank]
        if array._connection is not device._connection:
            session_note = "" if array.device.node is device.node else ", of another session"
            raise ArgumentError(
                f"{name} is {array!r}{session_note}; rank {rank} of the group is device {device.ordinal} of "
                f"{device.node.name}.",
                fix="pass the arrays in the order of group.devices.",
            )
        checked: A = array
        return checked

    def _list(self, name: str, arrays: Any) -> list[Any]:
        if isinstance(arrays, BaseArray) or not isinstance(arrays, Iterable):
            raise DtypeError(
                f"{name} is a {type(arrays).__name__}; it must be a list of {len(self._devices)} arrays.",
                fix="pass one array for each device, in the group's order.",
            )
        entries = list(arrays)
        if len(entries) != len(self._devices):
            raise ArgumentError(
                f"{name} has {len(entries)} entries; the group has {len(self._devices)} devices.",
                fix="pass one array for each device, in the group's order.",
            )
        return entries


def check_rank(name: str, rank: Any, ranks: int) -> int:
    """Checks a rank.

    Args:
        name: Name of the argument, for the error.
        rank: The rank, of any integer type except bool.
        ranks: Number of ranks of the group.

    Returns:
        The rank as an int.

    Raises:
        ArgumentError: It is not a rank of the group.
    """
    try:
        number = operator.index(rank)
    except TypeError:
        number = -1
    if isinstance(rank, bool) or not 0 <= number < ranks:
        raise ArgumentError(
            f"{name} is {rank!r}; the group has ranks 0 to {ranks - 1}.",
            fix="pass an index into group.devices.",
            details={name: str(rank), "ranks": str(ranks)},
        )
    return number


def check_array(name: str, array: Any) -> Any:
    """Checks an array that a collective reads.

    Args:
        name: Name of the argument, for errors.
        array: The array, or a `ReadOnly` one.

    Returns:
        The device array.

    Raises:
        DtypeError: It is no device array.
        ArgumentError: It is not contiguous.
        HearthError: It cannot be used, e.g. because it was freed or lost.
    """
    if isinstance(array, ReadOnly) and isinstance(array.array, BaseArray):
        array = array.array
    if not isinstance(array, BaseArray):
        raise DtypeError(
            f"{name} is a {type(array).__name__}; it must be a device array.",
            fix="upload it with node.device(i).asarray(...).",
        )
    if array._rows is not None:
        raise ArgumentError(
            f"{name} is {array!r} with strides {array.strides}; a collective requires contiguous memory.",
            fix="pass x.copy().",
        )
    array._usable()
    return array


def check_out(name: str, array: Any) -> Any:
    """Checks an array that a collective writes.

    Args:
        name: Name of the argument, for errors.
        array: The array.

    Returns:
        The device array.

    Raises:
        DtypeError: It is no device array.
        ArgumentError: It is read-only or not contiguous.
        HearthError: It cannot be used, e.g. because it was freed or lost.
    """
    if isinstance(array, ReadOnly) or (isinstance(array, BaseArray) and array._memory.read_only):
        raise ArgumentError(
            f"{name} is {array!r}, which is read-only.",
            reason="READ_ONLY",
            fix="pass another array: x.copy(), or gpu.empty_like(x).",
        )
    return check_array(name, array)


def check_like(name: str, array: BaseArray, shape: tuple[int, ...], dtype: np.dtype[Any], introduction: str) -> None:
    """Checks the shape and dtype of an array.

    Args:
        name: Name of the argument, for the error.
        array: The array.
        shape: The required shape.
        dtype: The required dtype.
        introduction: Words that introduce the required values in the error.

    Raises:
        ArgumentError: The shape or dtype differs.
    """
    if array.shape != shape or array.dtype != dtype:
        raise ArgumentError(
            f"{name} is {array.dtype} {array.shape}; {introduction} {dtype} {shape}.",
            reason="COLLECTIVE_MISMATCH",
            fix="pass arrays of the same shape and dtype on every rank: see reshape, view and the method's docstring.",
        )


def share_shape(name: str, array: BaseArray, ranks: int) -> tuple[int, ...]:
    """Computes the shape of one rank's share along the first dimension.

    Args:
        name: Name of the argument, for the error.
        array: The array.
        ranks: Number of ranks of the group.

    Returns:
        The shape of a share.

    Raises:
        ArgumentError: The first dimension is not divisible by the number of ranks.
    """
    if not array.shape or array.shape[0] % ranks:
        raise ArgumentError(
            f"{name} has shape {array.shape}; its first dimension cannot be divided evenly among {ranks} ranks.",
            fix=f"pad or reshape it so that its first dimension is a multiple of {ranks}.",
            details={"shape": str(array.shape), "ranks": str(ranks)},
        )
    return (array.shape[0] // ranks, *array.shape[1:])
