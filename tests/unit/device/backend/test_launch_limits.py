"""Checks of launches: all errors of a launch are reported together, with numbers; boundary values pass."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.launches import LayoutEntry
from hearthd.device.backend.launch_limits import (
    LaunchLimits,
    check,
    check_parameters,
    fix_of_arguments,
    refuse,
)
from hearthd.device.backend.resources import FunctionAttributes

LIMITS = LaunchLimits(1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535), 227 << 10)
KERNEL = FunctionAttributes()


@pytest.mark.parametrize(
    ("grid", "block"),
    [((1, 1, 1), (1024, 1, 1)), ((2**31 - 1, 65535, 65535), (16, 1, 64)), ((1, 1, 1), (32, 32, 1))],
)
def test_boundary_values_pass(grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
    assert check(LIMITS, KERNEL, grid, block, 227 << 10) == []


@pytest.mark.parametrize(
    ("grid", "block", "shared", "says"),
    [
        ((0, 1, 1), (1, 1, 1), 0, "grid.x is 0"),
        ((1, 1, 1), (1, 0, 1), 0, "block.y is 0"),
        ((2**31, 1, 1), (1, 1, 1), 0, "grid.x is 2147483648; the device's maximum is 2147483647"),
        ((1, 65536, 1), (1, 1, 1), 0, "grid.y is 65536"),
        ((1, 1, 1), (1, 1, 65), 0, "block.z is 65; the device's maximum is 64"),
        ((1, 1, 1), (1024, 2, 1), 0, "the block has 2048 threads; the device's maximum is 1024"),
        ((1, 1, 1), (2**31, 2**31, 4), 0, "the block has 18446744073709551616 threads"),
        ((1, 1, 1), (1, 1, 1), (227 << 10) + 1, "232449 bytes of shared memory"),
    ],
)
def test_each_failure_is_named(grid: tuple[int, int, int], block: tuple[int, int, int], shared: int, says: str) -> None:
    assert any(says in violation for violation in check(LIMITS, KERNEL, grid, block, shared))


def test_all_failures_of_one_launch_in_one_message() -> None:
    violations = check(LIMITS, FunctionAttributes(static_shared_bytes=1024), (0, 70000, 1), (1025, 1, 65), 227 << 10)
    assert len(violations) == 6
    refusal = refuse("saxpy", violations, (0, 70000, 1), (1025, 1, 65), 227 << 10)
    assert all(violation in refusal.message for violation in violations)
    assert refusal.details["failures"] == "6"
    assert refusal.fields == ("grid.x", "block.x", "block.z", "grid.y", "block", "shared_mem")


def test_invalid_arguments_are_named_by_their_field() -> None:
    violations = check_parameters([LayoutEntry(0, 4), LayoutEntry(8, 8, True)], [(0, 4), (8, 4)])
    assert refuse("saxpy", [*violations, "of no field"], (1, 1, 1), (1, 1, 1), 0).fields == ("arguments[1]",)
    violations = check_parameters([LayoutEntry(0, 4)], [(0, 4), (8, 8)])
    assert refuse("saxpy", violations, (1, 1, 1), (1, 1, 1), 0).fields == ("arguments",)


def test_the_kernels_own_bound() -> None:
    assert (
        "this kernel's maximum is 256"
        in check(LIMITS, FunctionAttributes(max_threads_per_block=256), (1, 1, 1), (512, 1, 1), 0)[0]
    )


def test_static_and_dynamic_shared_memory_add_up() -> None:
    assert check(LIMITS, FunctionAttributes(static_shared_bytes=8), (1, 1, 1), (1, 1, 1), (227 << 10) - 8) == []
    assert "8 static" in check(LIMITS, FunctionAttributes(static_shared_bytes=8), (1, 1, 1), (1, 1, 1), 227 << 10)[0]


sizes = st.lists(st.integers(1, 64), max_size=8)


@given(sizes, sizes)
def test_parameters_match_exactly_when_counts_and_sizes_do(given_sizes: list[int], real_sizes: list[int]) -> None:
    given_layout = [LayoutEntry(0, size) for size in given_sizes]
    real = [(0, size) for size in real_sizes]
    assert (check_parameters(given_layout, real) == []) == (given_sizes == real_sizes)


def test_a_wrong_count_and_a_wrong_size_are_named() -> None:
    assert check_parameters([LayoutEntry(0, 4)], [(0, 4), (8, 8)]) == [
        "1 argument is given; the kernel has 2 parameters"
    ]
    assert check_parameters([LayoutEntry(0, 8, True)], [(0, 4)]) == [
        "argument 0 has 8 bytes (a buffer); the kernel's parameter has 4"
    ]


def test_fix_has_numbers_and_sizes_of_parameters_and_arguments() -> None:
    real = [(0, 8), (8, 8), (16, 4)]
    assert fix_of_arguments([LayoutEntry(0, 8, True), LayoutEntry(8, 4)], real) == (
        "pass 3 arguments, of 8, 8 and 4 bytes, as the kernel's source declares; "
        "this launch passes 2 arguments, of 8 and 4 bytes"
    )
    assert fix_of_arguments([], real[:1]).startswith("pass 1 argument, of 8 bytes, ")
    assert fix_of_arguments([], real).endswith("this launch passes no arguments")
    assert fix_of_arguments([LayoutEntry(0, 4)], []).startswith("pass no arguments, ")
    assert "4, 4, ... bytes" in fix_of_arguments([], [(0, 4)] * 100)
