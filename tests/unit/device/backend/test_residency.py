"""Residency: vyre's measured table of blocks per multiprocessor, and the limit of a cooperative grid."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.backend.launch_limits import LaunchLimits
from hearthd.device.backend.residency import check_cluster, check_cooperative, fit_grid, product, thread_bound

FEATURES = frozenset({"cooperative_launch", "clusters"})
LIMITS = LaunchLimits(1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535), 227 << 10, 170, 1536, 24, FEATURES)


@pytest.mark.parametrize(("threads", "blocks"), [(32, 24), (64, 24), (128, 12), (256, 6), (512, 3), (1024, 1)])
def test_the_block_cap_clamps_narrow_blocks(threads: int, blocks: int) -> None:
    assert thread_bound(LIMITS, threads) == blocks * 170


def test_synthetic_capacity() -> None:
    wide = dataclasses.replace(LIMITS, max_threads_per_multiprocessor=2048, max_blocks_per_multiprocessor=0)
    assert thread_bound(wide, 256) == 1360


@pytest.mark.parametrize("reported", [0, -1])
def test_an_unreported_block_cap_applies_no_clamp(reported: int) -> None:
    assert thread_bound(dataclasses.replace(LIMITS, max_blocks_per_multiprocessor=reported), 32) == 48 * 170


def test_no_bound_for_zero_threads_or_an_unknown_limit() -> None:
    assert thread_bound(LIMITS, 0) == 0
    assert thread_bound(dataclasses.replace(LIMITS, max_threads_per_multiprocessor=0), 32) == 0


def test_products_do_not_wrap() -> None:
    assert product((2**31 - 1, 65535, 65535)) > 2**62
    (error,) = check_cooperative(LIMITS, (2**31 - 1, 65535, 65535), (1, 1, 1), None)
    assert str((2**31 - 1) * 65535 * 65535) in error


def test_the_boundary_of_the_thread_bound() -> None:
    assert check_cooperative(LIMITS, (6 * 170, 1, 1), (256, 1, 1), None) == []
    (error,) = check_cooperative(LIMITS, (6 * 170 + 1, 1, 1), (256, 1, 1), None)
    assert "1021 blocks" in error and "1020 blocks fit" in error and "6 on each of 170" in error


def test_the_functions_own_occupancy_bounds_further() -> None:
    assert check_cooperative(LIMITS, (340, 1, 1), (256, 1, 1), 2) == []
    (error,) = check_cooperative(LIMITS, (341, 1, 1), (256, 1, 1), 2)
    assert "340 blocks fit, limited by this kernel's registers and shared memory" in error


def test_devices_without_the_features_are_named() -> None:
    plain = dataclasses.replace(LIMITS, features=frozenset())
    assert "no cooperative" in check_cooperative(plain, (1, 1, 1), (1, 1, 1), None)[0]
    assert "no thread block clusters" in check_cluster(plain, (2, 1, 1), (2, 1, 1))[0]


def test_clusters() -> None:
    assert check_cluster(LIMITS, (4, 2, 1), (2, 2, 1)) == []
    assert check_cluster(LIMITS, (16, 1, 1), (16, 1, 1)) == []
    assert "cluster.y is 0" in check_cluster(LIMITS, (4, 2, 1), (2, 0, 1))[0]
    errors = check_cluster(LIMITS, (33, 2, 1), (32, 1, 1))
    assert "a cluster of 32 blocks; the maximum is 16" in errors[0]
    assert "grid.x is 33; it is not a multiple of cluster.x, which is 32" in errors[1]


@given(st.integers(1, 1024), st.integers(1, 4096))
def test_cooperative_check_and_thread_bound_agree(threads: int, blocks: int) -> None:
    fits = blocks <= thread_bound(LIMITS, threads)
    assert (check_cooperative(LIMITS, (blocks, 1, 1), (threads, 1, 1), None) == []) == fits


def test_a_grid_of_one_dimension_is_reduced_to_the_resident_maximum() -> None:
    assert fit_grid(LIMITS, (341, 1, 1), (256, 1, 1), 2) == (340, 1, 1)
    assert fit_grid(LIMITS, (7, 1, 1), (256, 1, 1), 2) == (7, 1, 1)
    assert fit_grid(LIMITS, (2000, 1, 1), (256, 1, 1), 100) == (6 * 170, 1, 1), "the threads of a multiprocessor"
    assert fit_grid(LIMITS, (341, 2, 1), (256, 1, 1), 2) == (341, 2, 1)
    assert fit_grid(LIMITS, (341, 1, 1), (256, 1, 1), 0) == (341, 1, 1)
