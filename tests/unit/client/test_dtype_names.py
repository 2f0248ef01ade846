"""Dtypes of device arrays; names that are no dtype, whose fix names the package that has them, or NumPy's."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import hearth
from hearth import shapes

ROOT = Path(__file__).parents[3]
MISSING = """
import sys
sys.modules["ml_dtypes"] = None  # as if it were not installed; once imported, NumPy knows its names
import hearth
from hearth import shapes
try:
    shapes.dtype_of("bfloat16")
except hearth.DtypeError as error:
    print(error.fix)
"""


def test_error_for_a_dtype_of_ml_dtypes_names_the_missing_package() -> None:
    done = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == (
        "install the extra hearth-gpu[ml-dtypes] (in a clone: pip install '.[ml-dtypes]'), or the package: "
        "pip install ml-dtypes.\n"
    )
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [each.partition(">")[0] for each in extras["ml-dtypes"]] == ["ml-dtypes"]


def test_other_names_have_a_dtype_of_numpy_as_the_fix() -> None:
    with pytest.raises(hearth.DtypeError, match="'flota32' is not a dtype") as caught:
        shapes.dtype_of("flota32")
    assert caught.value.fix == "use a dtype of NumPy, e.g. np.float32."


@pytest.mark.parametrize("name", ["?", "i1", "u2", "i4", "q", "f2", "f4", "f8", "g", "c8", "c16"])
def test_numbers_in_another_byte_order_or_with_metadata_have_numpys_own_dtype(name: str) -> None:
    expected = np.dtype(name)
    for value in (expected, expected.newbyteorder(), np.dtype(expected, metadata={"unit": "m"})):
        dtype = shapes.dtype_of(value)
        assert dtype is expected and dtype.isbuiltin == 1 and dtype.metadata is None


def test_a_dtype_with_a_shape_is_refused_and_the_fix_names_both() -> None:
    for take in (shapes.dtype_of, shapes.reinterpreted):
        with pytest.raises(hearth.DtypeError, match="has a shape") as caught:
            take(np.dtype((">i4", (3,))))
        assert ">i4" in caught.value.fix and "(3,)" in caught.value.fix
    assert shapes.dtype_of([("x", ">i4", 3)]) == np.dtype([("x", "i4", 3)])
