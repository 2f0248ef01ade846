"""A group at a daemon that has joined it, as an operator sees it: the last operations of the ranks of that node."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from hearthd.front.collectives.flight_recorder import OPERATIONS
from tests.support.collectives.group_nodes import LentNodes, Rank, form, launch_and_block, ranks, work
from tests.support.collectives.ranks import A, B, operation
from tests.support.daemon.harness import DaemonProcess, wait_until


@pytest.fixture
def two(lent_nodes: LentNodes) -> list[DaemonProcess]:
    return lent_nodes.lend(2)


@pytest.fixture
def pair(two: list[DaemonProcess]) -> Iterator[list[Rank]]:
    with ranks(*two) as both:
        yield both


def described(rank: Rank, group: bytes) -> Any:
    (found,) = [info for info in rank.call("DescribeGroups").groups if info.group == group]
    return found


def entry(rank: Rank, group: bytes, sequence: int) -> Any:
    (found,) = [each for each in described(rank, group).operations if each.sequence == sequence]
    return found


def test_both_daemons_record_completed_operations(pair: list[Rank]) -> None:
    group = form(pair)
    for sequence in range(1, 4):
        work(pair, group, sequence)
    for rank in pair:
        wait_until(lambda rank=rank: rank.state(group, 3) == "done")  # type: ignore[misc]
        info = described(rank, group)
        assert info.state == "ready" and [each.state for each in info.operations] == ["done"] * 3
    coordinator, follower = (entry(rank, group, 2) for rank in pair)
    assert follower.what == coordinator.what and "all_reduce" in follower.what
    assert (list(coordinator.presented), list(follower.presented)) == ([0, 1], [1])
    assert 0 < follower.presented_unix_ns <= follower.launched_unix_ns <= follower.finished_unix_ns


def test_description_shows_waiting_ranks_and_the_failure(pair: list[Rank]) -> None:
    group = form(pair)
    pair[1].present(group, 1, timeout=0.5)
    wait_until(lambda: pair[1].state(group, 1) == "presented")
    pair[1].failure()
    late = entry(pair[1], group, 1)
    assert late.state == "failed" and "rank" in late.error and not late.launched_unix_ns
    for rank, count in zip(pair, (3, 4), strict=True):
        rank.present(group, 2, operation("all_reduce", A, B, count=count))
    told = [rank.failure().message for rank in pair]
    assert told[1].startswith(entry(pair[1], group, 2).error[:100])
    work(pair, group, 3)


def test_the_last_operations_are_kept(pair: list[Rank]) -> None:
    group = form(pair)
    for sequence in range(1, OPERATIONS + 11):
        for rank in pair:
            rank.present(group, sequence, operation("barrier", count=0))
    for rank in pair:
        wait_until(lambda rank=rank: rank.state(group, OPERATIONS + 10) == "done")  # type: ignore[misc]
        kept = [each.sequence for each in described(rank, group).operations]
        assert kept == list(range(11, OPERATIONS + 11))


@pytest.mark.parametrize("lost", [0, 1])
def test_a_device_process_that_is_lost(pair: list[Rank], lost: int) -> None:
    group = form(pair)
    work(pair, group, 1)
    launch_and_block(pair, group, 2, pair[lost])
    wait_until(lambda: pair[1].state(group, 2) == "launched")
    os.kill(pair[lost].daemon.device_pid(), signal.SIGKILL)
    for rank in pair:
        wait_until(lambda rank=rank: rank.state(group, 2) == "failed")  # type: ignore[misc]
        found = entry(rank, group, 2)
        assert "SIGKILL" in found.error and found.launched_unix_ns and found.finished_unix_ns
        info = described(rank, group)
        assert info.state == "failed" and info.aborts == 1 and "SIGKILL" in info.detail
    pair[1 - lost].stream.failures()


def test_the_coordinator_is_lost(two: list[DaemonProcess]) -> None:
    with Rank(two[0], 0) as zero, Rank(two[1], 1) as one:
        group = form([zero, one])
        work([zero, one], group, 1)
        wait_until(lambda: one.state(group, 1) == "done")
        one.present(group, 2, timeout=30)
        wait_until(lambda: one.state(group, 2) == "presented")
        two[0].process.kill()
        zero.abandon()
        one.failure()
        found = entry(one, group, 2)
        assert found.state == "failed" and "node 0" in found.error
        assert described(one, group).state == "failed" and one.state(group, 1) == "done"
