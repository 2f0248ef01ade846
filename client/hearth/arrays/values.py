"""An array's elements as Python's own objects, as NumPy gives them. Each of these waits, and brings its bytes here."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

from hearth import dtypes, shapes
from hearth.arrays.host_copy import HostCopies


class Values(HostCopies):
    """What Python asks of an array that has one element, or may be a list."""

    __slots__ = ()

    def item(self, *index: SupportsIndex) -> Any:
        """One element as a Python object: the only one, the one at a flat index, or that of one index for each axis.

        Waits, as `get` does, and reads no more than that element. Raises ValueError where there are several.
        """
        return self._one(index)._element()

    def _one(self, index: tuple[SupportsIndex, ...]) -> Values:
        """What has that element alone."""
        if not index:
            if self.size != 1:
                raise ValueError(f"the array has {self.size} elements, and item() gives the only one: say which")
            return self
        at = tuple(operator.index(each) for each in index)
        if len(at) == 1:
            if not -self.size <= at[0] < self.size:
                raise IndexError(f"index {at[0]} is out of bounds for size {self.size}")
            at = shapes.unraveled(at[0] % self.size, self._shape)
        if len(at) != self.ndim:
            raise ValueError(f"item() takes one index, or one for each of {self.ndim} axes; it was given {len(at)}")
        return self[at]

    def tolist(self) -> Any:
        """The elements as nested lists of Python objects."""
        dtype = self._dtype
        if isinstance(dtype, dtypes.Element):
            return dtypes.elements(self._taken(), self._shape, dtype)
        return self.get().tolist()

    def tobytes(self) -> bytes:
        """Its bytes, in C order. Waits as `get` does; `readinto` fills memory that is there already."""
        return bytes(self._taken())

    def _taken(self) -> memoryview:
        data = memoryview(bytearray(self._nbytes))
        self.readinto(data)
        return data

    def _element(self) -> Any:
        """Of an array that has but one."""
        dtype = self._dtype
        if isinstance(dtype, dtypes.Element):
            return dtypes.elements(self._taken(), (), dtype)
        return self.get().item()

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(
                f"the truth of an array of {self.size} elements is ambiguous; ask a copy: x.get().any(), x.get().all()"
            )
        return bool(self._element())

    def __int__(self) -> int:
        return int(self._only())

    def __float__(self) -> float:
        return float(self._only())

    def __complex__(self) -> complex:
        return complex(self._only())

    def __index__(self) -> int:
        if self._shape or self._dtype.kind not in "iu":
            raise TypeError("only whole numbers, in arrays without axes, can be an index")
        return int(self.item())

    def __format__(self, how: str) -> str:
        if not how:
            return str(self)
        if self._shape:
            raise TypeError(f"{how!r} formats one element, not an array of shape {self._shape}: format x.get()")
        return format(self.item(), how)

    def _only(self) -> Any:
        if self.size != 1:
            raise TypeError(f"only arrays of one element are numbers to Python; this one has {self.size}")
        if isinstance(self._dtype, dtypes.Element):
            return self._element()
        return self.get().reshape(())[()]
