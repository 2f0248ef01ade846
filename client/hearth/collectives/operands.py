"""Arguments of collectives, checked before anything is sent."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from hearth.arrays.allocation import allocate
from hearth.arrays.base_array import BaseArray
from hearth.arrays.device_copy import name_of
from hearth.arrays.read_only import ReadOnly
from hearth.errors import ArgumentError, DtypeError
from hearth_proto.collectives import NUMBERS, OPS
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from hearth.base_device import BaseDevice


A = TypeVar("A", bound=BaseArray)


class Operands(Generic[A]):
    """Checks the arrays that a group's operation is given, one for each device, and makes those that are not given."""

    def __init__(self, devices: Sequence[BaseDevice[A, Any]]) -> None:
        self._devices = devices

    def arrays(self, arrays: Sequence[A], *, written: bool = False) -> list[A]:
        """Arrays, one for each rank, of one shape and dtype."""
        given = self._list("arrays", arrays)
        check = check_out if written else check_array
        found: list[A] = []
        for rank, array in enumerate(given):
            what = f"arrays[{rank}]"
            found.append(self._placed(what, check(what, array), rank))
            check_like(what, found[rank], found[0].shape, found[0].dtype, "rank 0 has")
        return found

    def outs(
        self,
        outs: Sequence[A] | None,
        shape: tuple[int, ...],
        like: A,
        known: dict[int, A] | None = None,
    ) -> list[A]:
        """Destinations, one for each rank, of this shape and the dtype of `like`: given, else known, else new ones."""
        if outs is not None:
            given = self._list("outs", outs)
            return [self.out(f"outs[{rank}]", out, rank, shape, like) for rank, out in enumerate(given)]
        known = known or {}
        return [
            known[rank] if rank in known else allocate(device, shape, like.dtype)
            for rank, device in enumerate(self._devices)
        ]

    def out(self, what: str, out: A | None, rank: int, shape: tuple[int, ...], like: A) -> A:
        if out is None:
            return allocate(self._devices[rank], shape, like.dtype)
        found = self._placed(what, check_out(what, out), rank)
        check_like(what, found, shape, like.dtype, "it has to be")
        return found

    def one(self, what: str, array: Any, rank: int) -> A:
        """A rank's array, to be read. Raises as `check_array` and `check_place` do."""
        return self._placed(what, check_array(what, array), rank)

    def _placed(self, what: str, array: Any, rank: int) -> A:
        check_place(what, array, rank, self._devices[rank])
        found: A = array
        return found

    def _list(self, what: str, arrays: Any) -> list[Any]:
        if isinstance(arrays, BaseArray) or not isinstance(arrays, Iterable):
            raise DtypeError(
                f"{what} is a {type(arrays).__name__}; it has to be a list of {len(self._devices)} arrays.",
                reason="INVALID_ARGUMENT",
                fix="pass one array for each device, in the group's order.",
            )
        found = list(arrays)
        check_number(what, len(found), len(self._devices))
        return found


def reduction(op: str) -> commands_pb2.ReduceOp:
    """The number of a reduction. Raises `ArgumentError`."""
    number = OPS.get(op) if isinstance(op, str) else None
    if number is None:
        raise ArgumentError(f"op is {op!r}.", reason="INVALID_ARGUMENT", fix=f"use one of {', '.join(OPS)}.")
    return number


def nanoseconds(timeout: float | None) -> int:
    """A timeout in seconds; 0: the daemon's default. Raises `ArgumentError`."""
    if timeout is None:
        return 0
    if not isinstance(timeout, int | float) or not 0 < timeout < 2**63 / 1e9:
        raise ArgumentError(f"timeout is {timeout} s.", reason="INVALID_ARGUMENT", fix="give seconds above 0.")
    return max(1, int(timeout * 1e9))


def check_rank(what: str, rank: Any, ranks: int) -> int:
    """`rank` as one of the group. Raises `ArgumentError`."""
    try:
        number = operator.index(rank)
    except TypeError:
        number = -1
    if isinstance(rank, bool) or not 0 <= number < ranks:
        raise ArgumentError(
            f"{what} is {rank!r}; the group has ranks 0 to {ranks - 1}.",
            reason="INVALID_ARGUMENT",
            fix="give a place in group.devices.",
            details={what: str(rank), "ranks": str(ranks)},
        )
    return number


def check_array(what: str, array: Any) -> Any:
    """An array that can be given to a collective: on a device, contiguous, usable. Raises `DtypeError`,
    `ArgumentError`, and what stands against its use."""
    if isinstance(array, ReadOnly) and isinstance(array.array, BaseArray):
        array = array.array
    if not isinstance(array, BaseArray):
        raise DtypeError(
            f"{what} is a {type(array).__name__}.",
            reason="INVALID_ARGUMENT",
            fix="upload it with node.device(i).asarray(...).",
        )
    if array._rows is not None:
        raise ArgumentError(
            f"{what} is {array!r} with strides {array.strides}; a collective takes contiguous memory.",
            reason="INVALID_ARGUMENT",
            fix="pass x.copy().",
        )
    array._usable()
    return array


def check_out(what: str, array: Any) -> Any:
    """Checks an array that is written: like `check_array`, and refuses a read-only one."""
    if isinstance(array, ReadOnly) or (isinstance(array, BaseArray) and array._memory.read_only):
        raise ArgumentError(
            f"{what} is {array!r}, which is read-only.",
            reason="READ_ONLY",
            fix="give a separate array: x.copy(), or gpu.empty_like(x).",
        )
    return check_array(what, array)


def check_place(what: str, array: BaseArray, rank: int, device: BaseDevice[Any, Any]) -> None:
    """Raises `ArgumentError` for an array that does not lie where its rank is."""
    if array._connection is not device._connection:
        theirs = "" if array.device.node is device.node else ", of another session"
        raise ArgumentError(
            f"{what} is {array!r}{theirs}; rank {rank} of the group is device {device.ordinal} of {device.node.name}.",
            reason="INVALID_ARGUMENT",
            fix="pass the arrays in the order of group.devices.",
        )


def check_like(what: str, array: BaseArray, shape: tuple[int, ...], dtype: np.dtype[Any], whose: str) -> None:
    """Raises `ArgumentError` for an array of another shape or dtype than `whose` says."""
    if array.shape != shape or array.dtype != dtype:
        raise ArgumentError(
            f"{what} is {array.dtype} {array.shape}; {whose} {dtype} {shape}.",
            reason="COLLECTIVE_MISMATCH",
            fix="every rank takes part with the same shape and dtype: see reshape, view and the method's docstring.",
        )


def check_number(what: str, count: int, ranks: int) -> None:
    """Raises `ArgumentError` where there is not one array for each rank."""
    if count != ranks:
        raise ArgumentError(
            f"{what} has {count} entries; the group has {ranks} devices.",
            reason="INVALID_ARGUMENT",
            fix="pass one array for each device, in the group's order.",
        )


def split(what: str, array: BaseArray, ranks: int) -> tuple[int, ...]:
    """The shape of one rank's share of the first dimension. Raises `ArgumentError` where it cannot be shared."""
    if not array.shape or array.shape[0] % ranks:
        raise ArgumentError(
            f"{what} has shape {array.shape}; its first dimension is shared among {ranks} ranks.",
            reason="INVALID_ARGUMENT",
            fix=f"pad or reshape it so that its first dimension is a multiple of {ranks}.",
            details={"shape": str(array.shape), "ranks": str(ranks)},
        )
    return (array.shape[0] // ranks, *array.shape[1:])


def reducible(array: BaseArray) -> str:
    """The name of a dtype that can be reduced. Raises `DtypeError`."""
    name = name_of(array.dtype)
    if name not in NUMBERS:
        raise DtypeError(
            f"{array.dtype} cannot be reduced.",
            reason="UNSUPPORTED",
            fix=f"use one of {', '.join(NUMBERS)}; complex numbers add up as pairs: x.view(np.float32).",
            details={"dtype": name},
        )
    return name
