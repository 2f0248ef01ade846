"""Shape, dtype and views of memory on a device; nothing here transfers or waits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

from hearth import shapes
from hearth.dtypes import Element
from hearth.errors import ArgumentError, UnsupportedError
from hearth.session.memory import OnDevice
from hearth_proto import layouts

if TYPE_CHECKING:
    from typing import Self

    import numpy as np

    from hearth.dtypes import Dtype


class Views(OnDevice):
    """What a `DeviceArray` looks like, and how it is cut."""

    __slots__ = ("_dtype", "_rows", "_shape", "_strides")

    _shape: tuple[int, ...]
    _dtype: Dtype
    """An `Element` until somebody asks for the dtype."""
    _strides: tuple[int, ...] | None
    """None: those of C order."""
    _rows: layouts.RowLayout | None
    """The rows that it consists of, from its start; None: it is contiguous."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an element."""
        dtype = self._dtype
        if isinstance(dtype, Element):
            self._dtype = dtype = dtype.dtype
        return dtype

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

    def __iter__(self) -> Iterator[Self]:
        """Views of its rows, along the first axis; of its elements, where it has but one."""
        if not self._shape:
            raise TypeError("an array without axes has no rows to go through; x.item() reads its element")
        return (self[row] for row in range(self._shape[0]))

    def _contiguous(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
        rows = layouts.rows_of(shape, strides, self._dtype.itemsize)
        return rows is not None and rows.dense

    def _as_rows(self) -> layouts.RowLayout:
        """The rows that it consists of, from its start."""
        return self._rows if self._rows is not None else layouts.RowLayout(0, self.nbytes)

    def _view(
        self,
        offset: int,
        shape: tuple[int, ...],
        dtype: Dtype,
        strides: tuple[int, ...] | None = None,
    ) -> Self:
        """The array `offset` bytes further on in the same memory; without strides, in C order."""
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Self:
        """A view: integers, slices, `...` and None, as in NumPy, of what lies in rows at one distance.

        That is, contiguous memory, or one axis cut: ``x[2:5]``, ``x[:, 3:7]``, ``x[..., 0]``, ``x[::2]``. An element is
        a view, too, without axes: ``x[3].item()`` reads it. Raises IndexError as NumPy does, and `UnsupportedError` for
        steps back, masks, lists of indices, and what is no such rows.
        """
        if index is Ellipsis:
            return self._view(0, self._shape, self._dtype, self._strides)
        from hearth.arrays import strided

        selection = strided.select(self._shape, self.strides, index)
        return self._view(selection.offset, selection.shape, self._dtype, selection.strides)

    def reshape(self, *shape: SupportsIndex | tuple[SupportsIndex, ...]) -> Self:
        """A view of another shape; one axis may be -1. Raises `UnsupportedError` where NumPy would make a copy."""
        axes: Any = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        fresh = shapes.reshaped(self.size, axes)
        if self._rows is None:
            return self._view(0, fresh, self._dtype)
        from hearth.arrays import strided

        strides = strided.reshaped_strides(self._rows, self._dtype.itemsize, fresh)
        if strides is None:
            raise UnsupportedError(
                f"rows of {self._rows.width} bytes, {self._rows.pitch} apart, cannot be seen as shape {fresh}.",
                reason="UNSUPPORTED",
                fix="x.copy().reshape(...) makes a contiguous copy first.",
            )
        return self._view(0, fresh, self._dtype, strides)

    def ravel(self) -> Self:
        """A view with one axis. Raises `UnsupportedError` where that takes a copy: see `flatten`."""
        return self.reshape(self.size)

    def squeeze(self, axis: int | tuple[int, ...] | None = None) -> Self:
        """A view without the axes of length 1, or without those of `axis`. Raises `ArgumentError` for a longer one."""
        gone = shapes.squeezed(self._shape, axis)
        kept = [at for at in range(self.ndim) if at not in gone]
        strides = None if self._strides is None else tuple(self._strides[at] for at in kept)
        return self._view(0, tuple(self._shape[at] for at in kept), self._dtype, strides)

    @property
    def T(self) -> Self:
        """As `transpose`."""
        return self.transpose()

    def transpose(self, *axes: int | Sequence[int] | None) -> Self:
        """A view with its axes in another order, by default in reverse, as far as rows of memory can be seen so: of an
        array with one axis, or where only axes of length 1 change places. Raises `UnsupportedError` for any other."""
        order = shapes.permutation(self.ndim, axes)
        strides = self.strides
        shape, moved = tuple(self._shape[at] for at in order), tuple(strides[at] for at in order)
        if layouts.rows_of(shape, moved, self.itemsize) is None:
            raise UnsupportedError(
                f"an array of shape {self._shape} is not transposed to {shape} without moving its elements.",
                reason="UNSUPPORTED",
                fix="have the kernel take its indices in the other order, transpose in a kernel, or on the host: "
                "gpu.asarray(x.get().transpose(...)).",
            )
        return self._view(0, shape, self._dtype, moved)

    def view(self, dtype: Any) -> Self:
        """The same bytes as another dtype; the last axis, which has to be contiguous then, changes as in NumPy."""
        fresh = shapes.reinterpreted(dtype)
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
