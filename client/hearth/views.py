"""Shape, dtype and views of memory on a device; nothing here transfers or waits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from hearth import shapes, strided
from hearth.errors import ArgumentError, UnsupportedError
from hearth.memory import OnDevice
from hearth_proto import layouts

if TYPE_CHECKING:
    from hearth.array import DeviceArray


class Views(OnDevice):
    """What a `DeviceArray` looks like, and how it is cut."""

    __slots__ = ("_dtype", "_rows", "_shape", "_strides")

    _shape: tuple[int, ...]
    _dtype: np.dtype[Any]
    _strides: tuple[int, ...] | None
    """None: those of C order."""
    _rows: layouts.Rows | None
    """The rows that it consists of, from its start; None: it is contiguous."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an element."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """Axes."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self._shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self._dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis."""
        if self._strides is not None:
            return self._strides
        return shapes.strides_of(self._shape, self._dtype.itemsize)

    @property
    def pitch(self) -> int:
        """Bytes from the start of one row (along the last axis) to the start of the next."""
        if self.ndim < 2:
            return self.nbytes if self._strides is None else self.strides[-1] * self._shape[-1]
        return self.strides[-2]

    @property
    def flags(self) -> Flags:
        """Whether it is contiguous: ``x.flags.c_contiguous``."""
        return Flags(self._rows is None, self._contiguous(self._shape[::-1], self.strides[::-1]))

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of an array without axes")
        return self._shape[0]

    def _contiguous(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
        rows = layouts.rows_of(shape, strides, self._dtype.itemsize)
        return rows is not None and rows.dense

    def _as_rows(self) -> layouts.Rows:
        """The rows that it consists of, from its start."""
        return self._rows if self._rows is not None else layouts.Rows(0, self.nbytes)

    def _view(
        self,
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        strides: tuple[int, ...] | None = None,
    ) -> DeviceArray:
        """The array `offset` bytes further on in the same memory; without strides, in C order."""
        raise NotImplementedError

    def __getitem__(self, index: Any) -> DeviceArray:
        """A view: integers, slices, `...` and None, as in NumPy, of what lies in rows at one distance.

        That is, contiguous memory, or one axis cut: ``x[2:5]``, ``x[:, 3:7]``, ``x[..., 0]``, ``x[::2]`` of a matrix.
        Raises `UnsupportedError` for steps along the last axis or back, masks, lists, and what is no such rows.
        """
        if index is Ellipsis:
            return self._view(0, self._shape, self._dtype, self._strides)
        selection = strided.select(self._shape, self.strides, index)
        return self._view(selection.offset, selection.shape, self._dtype, selection.strides)

    def reshape(self, *shape: SupportsIndex | tuple[SupportsIndex, ...]) -> DeviceArray:
        """A view of another shape; one axis may be -1. Raises `UnsupportedError` where NumPy would make a copy."""
        axes: Any = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        fresh = shapes.reshaped(self.size, axes)
        if self._rows is None:
            return self._view(0, fresh, self._dtype)
        strides = strided.reshaped_strides(self._rows, self._dtype.itemsize, fresh)
        if strides is None:
            raise UnsupportedError(
                f"rows of {self._rows.width} bytes, {self._rows.pitch} apart, cannot be seen as shape {fresh}.",
                reason="UNSUPPORTED",
                fix="x.copy().reshape(...) makes a contiguous copy first.",
            )
        return self._view(0, fresh, self._dtype, strides)

    def ravel(self) -> DeviceArray:
        """A view with one axis. Raises `UnsupportedError` where it is not contiguous."""
        return self.reshape(self.size)

    def view(self, dtype: Any) -> DeviceArray:
        """The same bytes as another dtype; the last axis, which has to be contiguous then, changes as in NumPy."""
        fresh = shapes.dtype_of(dtype)
        if fresh.itemsize == self._dtype.itemsize:
            return self._view(0, self._shape, fresh, self._strides)
        if not self._shape or self._shape[-1] * self._dtype.itemsize % fresh.itemsize:
            raise ArgumentError(
                f"the last axis of shape {self._shape} of {self._dtype} does not divide into {fresh}.",
                reason="INVALID_ARGUMENT",
                fix="reshape or slice first.",
            )
        strides = None if self._rows is None else self._strides
        if strides is not None:
            if strides[-1] != self._dtype.itemsize:
                raise ArgumentError(
                    f"the last axis of this view has stride {strides[-1]}; it is not contiguous.",
                    reason="INVALID_ARGUMENT",
                    fix="x.copy().view(...) makes a contiguous copy first.",
                )
            strides = (*strides[:-1], fresh.itemsize)
        last = self._shape[-1] * self._dtype.itemsize // fresh.itemsize
        return self._view(0, (*self._shape[:-1], last), fresh, strides)


class Flags:
    """How an array lies in memory, by NumPy's names."""

    __slots__ = ("c_contiguous", "f_contiguous")

    def __init__(self, c_contiguous: bool, f_contiguous: bool) -> None:
        self.c_contiguous = c_contiguous
        self.f_contiguous = f_contiguous

    def __getitem__(self, name: str) -> bool:
        if name not in ("C_CONTIGUOUS", "F_CONTIGUOUS"):
            raise KeyError(name)
        return self.c_contiguous if name[0] == "C" else self.f_contiguous

    def __repr__(self) -> str:
        return f"C_CONTIGUOUS : {self.c_contiguous}\nF_CONTIGUOUS : {self.f_contiguous}"
