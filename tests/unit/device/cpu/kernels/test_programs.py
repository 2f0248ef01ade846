"""CUDA programs as users write them (programs/*.cu): each produces the numbers listed after its name."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.cpu.differential import nvrtc
from tests.support.cpu.kernels import Kernels

FILES = sorted((Path(__file__).parent / "programs").glob("*.cu"))
_PROGRAM = re.compile(r"^// program (\w+): ([-\d ]+)$", re.MULTILINE)


def options(file: Path) -> list[str]:
    return ["-std=c++20" if file.stem == "modern" else "-std=c++17"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_programs_run_as_written(file: Path) -> None:
    source = file.read_text()
    programs = _PROGRAM.findall(source)
    assert len(programs) == source.count("// program ") > 0
    kernels = Kernels(source, options(file))
    results: dict[str, list[int]] = {}
    for name, numbers in programs:
        out = np.full(16, -77, np.int32)
        kernels(name, 1, 32, out, shared=1024)
        results[name] = out[: len(numbers.split())].tolist()
    assert results == {name: [int(number) for number in numbers.split()] for name, numbers in programs}


@pytest.mark.skipif(nvrtc.library() is None, reason="nvidia-cuda-nvrtc is not installed")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_programs_compile_with_nvrtc(file: Path) -> None:
    compile_error = nvrtc.compile_source(file.read_text(), ["-arch=sm_90", "-device-int128", *options(file)])
    assert not compile_error
