"""Random CUDA kernels in the forms that users write: the CPU backend compared with a NumPy reference, and acceptance by
NVRTC.

HEARTH_TEST_SEEDS=4 generates more programs, `python -m tests.support.cpu.differential --seeds 200` many more;
tests/gpu/test_differential_gpu.py runs the same programs on a GPU.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.support.cpu.differential import nvrtc
from tests.support.cpu.differential.failures import Failure
from tests.support.cpu.differential.generator import FORMS, STEPS
from tests.support.cpu.differential.kernels import KERNEL_FORMS, Kernel
from tests.support.cpu.differential.programs import Program, program
from tests.support.folders import ROOT

SEEDS = tuple(range(1, 1 + int(os.environ.get("HEARTH_TEST_SEEDS", "2"))))
"""Seeds of the generated programs; the first program already has every kind of kernel, step and call."""
SPECIAL = ("early_return", "last_block", "grid_barrier", "constant_template", "whole_warps")

drawn = functools.cache(program)

needs_nvrtc = pytest.mark.skipif(nvrtc.library() is None, reason=f"the package {nvrtc.PACKAGE} is not installed")


@pytest.mark.parametrize("seed", SEEDS)
def test_random_kernels_equal_the_reference(seed: int) -> None:
    """Runs in a separate process, which forks for each kernel, because a test process has threads."""
    command = [sys.executable, "-m", "tests.support.cpu.differential", "--first", str(seed), "--seeds", "1"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_kind_of_kernel_step_and_call_is_drawn() -> None:
    found = {tag for seed in SEEDS for kernel in drawn(seed).kernels for tag in kernel.tags}
    missing = {*STEPS, *FORMS, *KERNEL_FORMS, *SPECIAL} - found
    assert not missing


def test_a_seed_always_gives_the_same_program() -> None:
    first, again = program(SEEDS[0]), program(SEEDS[0])
    assert first.source() == again.source() and first.headers == again.headers
    for one, other in zip(first.launches, again.launches, strict=True):
        for a, b in zip(one.expected(), other.expected(), strict=True):
            np.testing.assert_array_equal(a, b)


def test_differences_are_reported_with_the_source_and_both_results() -> None:
    launch = drawn(SEEDS[0]).launches[0]
    out, cells = launch.expected()
    assert launch.compare(out, cells) == ""
    wrong = out.copy()
    wrong[-1] ^= 1
    difference = launch.compare(wrong, cells)
    assert f"expected {out[-1]:#010x}, got {wrong[-1]:#010x}" in difference
    report = Failure(launch.kernel, SEEDS[0], difference).report()
    assert launch.kernel.text in report and difference in report and f"--first {SEEDS[0]}" in report


# ---- acceptance by NVRTC, which needs no GPU ----


def accepted(of: Program, kernels: list[Kernel], architecture: str) -> None:
    """Fails with the message and the source of each kernel that NVRTC does not compile."""
    if not nvrtc.compile_error(of, kernels, architecture):
        return
    errors = [(kernel, nvrtc.compile_error(of, [kernel], architecture)) for kernel in kernels]
    failures = [Failure(kernel, of.seed, text) for kernel, text in errors if text]
    raise AssertionError("\n\n".join(failure.report() for failure in failures) or "only the whole source is refused")


@needs_nvrtc
@pytest.mark.parametrize("architecture, seeds", [("compute_80", SEEDS), ("sm_90", SEEDS[:1])])
def test_nvrtc_compiles_the_random_kernels(architecture: str, seeds: tuple[int, ...]) -> None:
    for seed in seeds:
        accepted(drawn(seed), [kernel for kernel in drawn(seed).kernels if not kernel.includes], architecture)


@needs_nvrtc
def test_nvrtc_compiles_the_random_kernels_with_cooperative_groups() -> None:
    for seed in SEEDS[-1:]:
        kernels = [kernel for kernel in drawn(seed).kernels if kernel.includes]
        if not nvrtc.toolkit():
            names = ", ".join(kernel.name for kernel in kernels)
            pytest.skip(f"no headers of the CUDA toolkit are installed for NVRTC {nvrtc.version()}; left out: {names}")
        accepted(drawn(seed), kernels, "compute_80")
