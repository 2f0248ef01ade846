"""Shape, dtype and views of memory on a device; nothing here transfers or waits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from hearth import shapes
from hearth.errors import ArgumentError, UnsupportedError
from hearth.memory import OnDevice

if TYPE_CHECKING:
    from hearth.array import DeviceArray


class Views(OnDevice):
    """What a `DeviceArray` looks like, and how it is cut."""

    __slots__ = ("_dtype", "_shape")

    _shape: tuple[int, ...]
    _dtype: np.dtype[Any]

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
        return shapes.strides_of(self._shape, self._dtype.itemsize)

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of an array without axes")
        return self._shape[0]

    def _view(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:
        """The array `offset` bytes further on, of another shape and dtype, in the same memory."""
        raise NotImplementedError

    def __getitem__(self, index: Any) -> DeviceArray:
        """A view: an element or a slice of step 1 of the first axis; `...` for all."""
        if index is Ellipsis:
            return self._view(0, self._shape, self._dtype)
        if not self._shape:
            raise IndexError("an array without axes has no elements to index")
        length, row = self._shape[0], shapes.strides_of(self._shape, self._dtype.itemsize)[0]
        if isinstance(index, slice):
            start, stop, step = index.indices(length)
            if step == 1:
                return self._view(start * row, (max(0, stop - start), *self._shape[1:]), self._dtype)
        elif hasattr(index, "__index__"):
            at = index.__index__()
            if not -length <= at < length:
                raise IndexError(f"index {at} is out of bounds for axis 0 with size {length}")
            return self._view(at % length * row, self._shape[1:], self._dtype)
        raise UnsupportedError(
            f"{index!r} does not select contiguous memory.",
            reason="UNSUPPORTED",
            fix="index the first axis with an integer or a slice of step 1, or use x.get()[...].",
        )

    def reshape(self, *shape: SupportsIndex | tuple[SupportsIndex, ...]) -> DeviceArray:
        """A view of another shape; one axis may be -1."""
        axes: Any = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        return self._view(0, shapes.reshaped(self.size, axes), self._dtype)

    def ravel(self) -> DeviceArray:
        """A view with one axis."""
        return self._view(0, (self.size,), self._dtype)

    def view(self, dtype: Any) -> DeviceArray:
        """The same bytes as another dtype; the last axis changes as in NumPy."""
        fresh = shapes.dtype_of(dtype)
        if fresh.itemsize == self._dtype.itemsize:
            return self._view(0, self._shape, fresh)
        if not self._shape or self._shape[-1] * self._dtype.itemsize % fresh.itemsize:
            raise ArgumentError(
                f"the last axis of shape {self._shape} of {self._dtype} does not divide into {fresh}.",
                reason="INVALID_ARGUMENT",
                fix="reshape or slice first.",
            )
        last = self._shape[-1] * self._dtype.itemsize // fresh.itemsize
        return self._view(0, (*self._shape[:-1], last), fresh)
