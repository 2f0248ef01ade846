"""Names that are no dtype: the fix names the package that has them, or NumPy's."""

from __future__ import annotations

import sys

import pytest

import hearth
from hearth import shapes


def test_dtype_of_ml_dtypes_names_the_package_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(hearth.DtypeError, match="'bfloat16' is no dtype") as caught:
        shapes.dtype_of("bfloat16")
    assert caught.value.fix == "install the package that has it: pip install ml-dtypes."
    with pytest.raises(hearth.DtypeError) as caught:
        shapes.dtype_of("flota32")
    assert caught.value.fix == "use a dtype of NumPy, e.g. np.float32."
