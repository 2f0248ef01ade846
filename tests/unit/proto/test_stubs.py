"""The generated stubs are up to date with the .proto files."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.folders import ROOT

GENERATOR = ROOT / ".venv-proto" / "bin" / "python"


@pytest.mark.skipif(not GENERATOR.exists(), reason="the pinned generator is not installed; `make proto-check` does")
def test_stubs_are_fresh() -> None:
    done = subprocess.run(
        [GENERATOR, ROOT / "proto" / "generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
