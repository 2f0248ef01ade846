"""Shape and dtype of a published buffer, in the format that publisher and readers share."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from hearth import shapes
from hearth.errors import UnsupportedError

_MAX_AXES = 64
"""Maximum number of axes, which is NumPy's own limit."""
_PLAIN = re.compile(r"[<>|=]?(b1|[iufc][0-9]{1,2}|[SU][0-9]{1,9}|[mM]8(\[[0-9a-zA-Z]{1,8}\])?)")
_NAMED = re.compile(r"[a-z][a-z0-9_]{2,31}")
"""Names of dtypes that packages register with NumPy, e.g. ``bfloat16``."""
_REGISTERED = 2
"""Value of `np.dtype.isbuiltin` for such dtypes."""


@dataclass(frozen=True)
class PublishedArray:
    """A published array that can be attached.

    `shape` and `dtype` are None if the publisher gives none, or invalid ones.
    """

    name: str
    tenant: str
    """Name of the tenant that published the array."""
    nbytes: int
    shape: tuple[int, ...] | None
    dtype: np.dtype[Any] | None
    attached: int
    """Number of sessions that have attached the array."""


def describe(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Serializes shape and dtype for readers.

    Args:
        shape: Elements along each axis.
        dtype: Type of the elements.

    Returns:
        The description, a JSON document.

    Raises:
        UnsupportedError: The dtype cannot be described by a name.
    """
    name = dtype.str if dtype.isbuiltin == 1 or dtype.kind in "SUmM" else dtype.name
    if _dtype_named(name) != dtype:
        raise UnsupportedError(
            f"dtype {dtype} cannot be published by name.",
            fix="publish it as bytes: x.view(np.uint8).publish(name); gpu.attach then requires shape= and dtype=.",
        )
    return json.dumps({"dtype": name, "shape": shape}, separators=(",", ":")).encode()


def parse(description: bytes) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Returns shape and dtype from a description; None if it describes no valid array (any program may publish)."""
    try:
        document = json.loads(description)
        shape, name = document["shape"], document["dtype"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return valid(shape, name)


def valid(shape: object, name: object) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Returns shape and dtype as a document describes them; None if they are invalid.

    Args:
        shape: The document's value for the shape; valid: a list of ints from 0.
        name: The document's value for the dtype; valid: a name by which this process finds the dtype.
    """
    if not isinstance(shape, list) or len(shape) > _MAX_AXES or not isinstance(name, str):
        return None
    if not all(type(axis) is int and 0 <= axis < 2**63 for axis in shape):
        return None
    dtype = _dtype_named(name)
    if dtype is None or math.prod(shape) * dtype.itemsize >= 2**63:
        return None
    return tuple(shape), dtype


def _dtype_named(name: str) -> np.dtype[Any] | None:
    """Returns the dtype that a name describes; None if its elements have fields or are Python objects."""
    plain = _PLAIN.fullmatch(name) is not None
    if not plain and _NAMED.fullmatch(name) is None:
        return None
    dtype = shapes.named(name)  # a dtype of `ml_dtypes`, which this process may not have imported yet
    if dtype is None:
        try:
            dtype = np.dtype(name)
        except (TypeError, ValueError, OverflowError):
            return None
    if not dtype.itemsize or dtype.hasobject or not (plain or dtype.isbuiltin == _REGISTERED):
        return None
    return dtype
