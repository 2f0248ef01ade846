"""Computations of shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hearth


@given(st.integers(-(2**70), 2**70), st.integers(1, 2**70))
def test_cdiv_rounds_up(a: int, b: int) -> None:
    assert (hearth.cdiv(a, b) - 1) * b < a <= hearth.cdiv(a, b) * b


@pytest.mark.parametrize(
    ("a", "b", "kind"), [(1, 0, hearth.ArgumentError), (1.5, 2, hearth.DtypeError), (1, "2", hearth.DtypeError)]
)
def test_cdiv_refuses_other_arguments_by_name(a: Any, b: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="cdiv"):
        hearth.cdiv(a, b)
    assert hearth.cdiv(np.int32(5), 2) == 3
