"""Names that are no dtype: the fix names the package that has them, or NumPy's."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

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
